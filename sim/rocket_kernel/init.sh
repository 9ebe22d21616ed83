#!/bin/sh
# The first process of the kernel: runs $JOB on the host's own files, writes its exit status into
# $STATUS, and ends the kernel. JOB, STATUS and PYTHON come from the kernel's command line.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
sh "$JOB"
echo $? >"$STATUS"
sync
exec "$PYTHON" -c 'import ctypes; ctypes.CDLL(None).reboot(0x4321FEDC)' # RB_POWER_OFF
