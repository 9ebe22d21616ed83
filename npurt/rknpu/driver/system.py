"""Make the system calls of drivers, through the C library or the simulator.

All system calls of higher layers go through this module, so only this module differs for a
simulated NPU.
"""

import errno
import fcntl
import json
import os
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from cffi import FFI

from npurt.base.library import path_of
from npurt.base.once import once
from npurt.errors import (
    DeviceFull,
    DeviceLost,
    DeviceNotFound,
    DeviceTimeout,
    DriverError,
    SettingError,
)
from npurt.rknpu.driver import uapi_drm, uapi_rknpu, uapi_rocket
from npurt.rknpu.driver.native import host
from npurt.rknpu.driver.native.run import INTERRUPTIONS, U8, NativeRun
from npurt.rknpu.driver.uapi_drm import Ioctl
from npurt.settings import SIM_RKNPU

# In C, ioctl and open have variadic arguments.  On the ABIs of 64-bit Linux, calls with fixed
# arguments are equivalent, and a third faster in cffi.
_CALLS = """
int open(const char *path, int flags, int mode);
int close(int fd);
int ioctl(int fd, unsigned long request, void *argument);
void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset);
int munmap(void *address, size_t length);

int rknpu_sim_set(const char *settings, char *why, size_t size);
size_t rknpu_sim_report(char *json, size_t size);
"""  # only the simulator has the last two functions
# First part of a chip's name -> number of NPU cores to try (RK3582: not verified [?]).
# `RknpuDriver.refuses_all_cores` checks this number with a job.
CHIPS = {"rk3588": 3, "rk3582": 3, "rk3583": 2}
PROT_READ, PROT_WRITE, MAP_SHARED = 1, 2, 1  # asm-generic/mman-common.h

_REMEDIES: dict[int, tuple[type[DriverError], str]] = {
    errno.ENOMEM: (DeviceFull, "close other users of the NPU, or run a smaller model"),
    errno.ENOSPC: (DeviceFull, "close other users of the NPU, or run a smaller model"),
    errno.ETIMEDOUT: (DeviceTimeout, "read `dmesg`; if this repeats, load the driver again"),
    errno.EBUSY: (DeviceTimeout, "close other users of the NPU, then try again"),
    errno.ENODEV: (DeviceLost, "read `dmesg`; load the driver again or restart the board"),
    errno.ENXIO: (DeviceLost, "read `dmesg`; load the driver again or restart the board"),
    errno.EIO: (DeviceLost, "read `dmesg`; load the driver again or restart the board"),
}
_OTHERWISE = (DriverError, "report this error with the output of `dmesg`")


@once
def ffi() -> Any:
    """Parse the declarations once, on first use."""
    parser = FFI()
    for declarations in (_CALLS, uapi_drm.CDEF, uapi_rocket.CDEF, uapi_rknpu.CDEF):
        parser.cdef(declarations)
    return parser


class LinuxKernel:
    """The kernel of this machine.

    Args:
        root: The folder that contains sys and proc.
    """

    simulated = False

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self._folders: dict[int, int] = {}  # descriptors: locked node -> its device's /sys folder
        self._use(ffi().dlopen(None))

    def _use(self, library: Any) -> None:
        """Make later calls through *library*."""
        self._calls = library
        self._ioctl = host.ffi().cast("npurt_rk_ioctl *", library.ioctl)

    def open(self, path: str) -> int:
        """Open a device node with O_CLOEXEC; return the descriptor.

        Raises:
            OSError: The call failed.
        """
        fd = int(self._calls.open(path.encode(), os.O_RDWR | os.O_CLOEXEC, 0))
        if fd < 0:
            raise OSError(ffi().errno, os.strerror(ffi().errno), path)
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor, which releases its locks."""
        folder = self._folders.pop(fd, None)
        self._calls.close(fd)
        if folder is not None:
            os.close(folder)

    def ioctl(self, fd: int, request: Ioctl, argument: Any) -> None:
        """Make a request; repeat it after an interruption by a signal, up to `INTERRUPTIONS` times.

        Raises:
            DriverError: The request failed; the subclass depends on errno.
        """
        code = errno.EINTR
        for _ in range(INTERRUPTIONS):
            if self._calls.ioctl(fd, request.number, argument) >= 0:
                return
            code = ffi().errno
            if code != errno.EINTR:
                break
        raise failure(request.name, code)

    def make(self, run: NativeRun) -> int | None:
        """Run a job.  Return the index of the first sentinel that was not overwritten, or None.

        Raises:
            NumericsError: x holds NaN or infinity; no request was made.
            DriverError: A request failed, see `ioctl`; later requests of its queue were not made.
        """
        library = host.lib()
        what = library.npurt_rk_run(self._ioctl, run.table)
        if not what:
            return None
        place = run.table.at
        if what == library.NPURT_RK_BAD_ROW:
            raise host.not_finite(run.first + place)
        if what == library.NPURT_RK_REFUSED:
            queue = run.table.queues[place]
            raise failure(run.names[place][queue.made], queue.error)
        return int(place)

    def map(self, fd: int, nbytes: int, offset: int) -> U8:
        """Map a driver's memory; it is unmapped when no view of the array is alive.

        Raises:
            DriverError: The mapping failed.
        """
        protection = PROT_READ | PROT_WRITE
        pointer = self._calls.mmap(ffi().NULL, nbytes, protection, MAP_SHARED, fd, offset)
        if pointer == ffi().cast("void *", -1):
            raise failure("mmap", ffi().errno)
        memory = np.frombuffer(ffi().buffer(pointer, nbytes), np.uint8)
        weakref.finalize(memory, self._calls.munmap, pointer, nbytes).atexit = False
        return memory

    def lock(self, fd: int, node: str) -> None:
        """Lock the NPU while *fd* is open, because two processes at once can hang a board.

        The lock is on the node and on the device's folder in /sys, because a device may have two
        nodes, renderD* and card*.

        Raises:
            DeviceNotFound: Another process has the lock.
        """
        if fd in self._folders:
            return
        self._lock(fd, node)
        number = os.fstat(fd).st_rdev
        path = self.root / f"sys/dev/char/{os.major(number)}:{os.minor(number)}/device"
        try:
            folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # without /sys, only the node is locked
        try:
            self._lock(folder, node)
        except BaseException:
            os.close(folder)
            raise
        self._folders[fd] = folder

    def _lock(self, fd: int, node: str) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DeviceNotFound(
                f"{node} is in use by {self._holder(fd)}",
                remedy="end that process, or wait; two programs at once on this NPU can hang the "
                "board",
            ) from error

    def _holder(self, fd: int) -> str:
        """Return a description of the process with the lock, from the kernel's list of locks."""
        inode = os.fstat(fd).st_ino
        try:
            locks = (self.root / "proc/locks").read_text()
        except OSError:
            locks = ""
        found = re.search(rf"FLOCK .* (\d+) [0-9a-f]+:[0-9a-f]+:{inode} ", locks)
        return f"process {found[1]}" if found else "another process"

    def cores(self, driver: str) -> int:
        """Return the number of cores of *driver*.

        Raises:
            DeviceNotFound: The chip is not in `CHIPS`.
        """
        if driver == uapi_rocket.NAME:
            return len(list(self.root.glob("sys/bus/platform/drivers/rocket/*.npu")))
        try:
            path = self.root / "proc/device-tree/compatible"
            compatible = path.read_text(errors="replace").split("\0")
        except OSError:
            compatible = []
        for chip, cores in CHIPS.items():
            if any(name.startswith(f"rockchip,{chip}") for name in compatible):
                return cores
        raise DeviceNotFound(
            f"the chip is {' '.join(filter(None, compatible)) or 'unknown'}, not an RK3588",
            remedy="use device 'cpu'; the NPUs of other Rockchip chips have other registers",
        )


class SimulatedKernel(LinuxKernel):
    """Simulated nodes of both drivers, in this process.

    Raises:
        DeviceNotFound: The simulator's library cannot be loaded.
        SettingError: The simulator refuses the value of NPURT_SIM_RKNPU.
    """

    simulated = True

    def __init__(self) -> None:
        super().__init__()
        try:
            self._use(ffi().dlopen(str(path_of("rknpu/sim/librknpu_sim.so"))))
        except OSError as error:
            raise DeviceNotFound(
                f"cannot load the RK3588 simulator: {error}",
                remedy="reinstall npurt; in a checkout run `python -m tools.build`",
            ) from error
        refused = self.report()["settings_refused"]
        if refused:
            raise SettingError(
                f"the RK3588 simulator refuses {SIM_RKNPU}: {refused}",
                remedy="docs/simulators.md lists its settings",
            )

    def set(self, settings: str) -> None:
        """Apply ``key=value`` settings, separated by spaces: docs/simulators.md lists them.

        Raises:
            SettingError: The simulator refuses a setting.
        """
        why = ffi().new("char[]", 256)
        if self._calls.rknpu_sim_set(settings.encode(), why, len(why)):
            reason = ffi().string(why).decode()
            raise SettingError(
                f"the RK3588 simulator refuses {settings!r}: {reason}",
                remedy="docs/simulators.md lists its settings",
            )

    def report(self) -> dict[str, Any]:
        """Return the simulator's counters and time estimates since it was loaded or reset."""
        text = ffi().new("char[]", self._calls.rknpu_sim_report(ffi().NULL, 0) + 4096)
        self._calls.rknpu_sim_report(text, len(text))
        report: dict[str, Any] = json.loads(ffi().string(text))
        return report

    def lock(self, fd: int, node: str) -> None:
        """Do nothing: each process has its own simulated NPU."""

    def cores(self, driver: str) -> int:
        """Return the number of simulated cores."""
        return int(self.report()["core_count"])


def failure(call: str, code: int) -> DriverError:
    """Return the error for a call that failed with the errno *code*."""
    kind, remedy = _REMEDIES.get(code, _OTHERWISE)
    name = errno.errorcode.get(code, "unknown errno")
    return kind(f"{call} failed: {os.strerror(code)} ({name})", remedy=remedy, call=call, code=code)
