"""Clients of both drivers, with structs and numbers of the uAPI headers and no code of npurt.

Sources: include/uapi/drm/rocket_accel.h of Linux 6.18; rknpu_ioctl.h of rknpu 0.9.8.
"""

import atexit
import errno
import functools
import json
import os
import shutil
import struct
import tempfile
import time
from pathlib import Path

import numpy as np
from cffi import FFI

from tools import build

CREATE_BO, SUBMIT_ROCKET, PREP_BO, FINI_BO = 0xC0186440, 0x40186441, 0x40106442, 0x40086443
ACTION, SUBMIT, MEM_CREATE = 0xC0086440, 0xC0686441, 0xC0306442
MEM_MAP, MEM_DESTROY, MEM_SYNC = 0xC0106443, 0xC0106444, 0xC0206445
VERSION, GEM_CLOSE = 0xC0406400, 0x40086409
ROCKET_NODE, RKNPU_NODE, RKNPU_CARD = "/dev/accel/accel0", "/dev/dri/renderD128", "/dev/dri/card1"
PC, NONBLOCK, PINGPONG, FENCE_IN, FENCE_OUT = 1, 2, 4, 8, 16
DATA, TASKS, LISTS = 0x13, 8, 0  # flags of buffers: cached for the CPU; the kernel's; neither
SECOND = 1_000_000_000


@functools.cache
def simulator():
    """Build the library as the package has it, and return (ffi, library, path)."""
    (path,) = build.make(build.PACKAGE, build.host(), ["rknpu"])
    # A copy has separate memory and settings; other tests of this process use the library itself.
    copy = Path(tempfile.mkdtemp()) / path.name
    atexit.register(shutil.rmtree, copy.parent, ignore_errors=True)
    shutil.copyfile(path, copy)
    ffi = FFI()
    ffi.cdef("""
        int open(const char *, int, ...);
        int close(int);
        int ioctl(int, unsigned long, void *);
        void *mmap(void *, size_t, int, int, int, int64_t);
        int munmap(void *, size_t);
        int rknpu_sim_set(const char *, char *, size_t);
        size_t rknpu_sim_report(char *, size_t);
    """)
    return ffi, ffi.dlopen(str(copy)), path


def configure(settings):
    """Apply settings of the simulator."""
    ffi, lib, _ = simulator()
    why = ffi.new("char[]", 256)
    if lib.rknpu_sim_set(settings.encode(), why, 256):
        raise ValueError(ffi.string(why).decode())


def report():
    """Return the simulator's counters."""
    ffi, lib, _ = simulator()
    text = ffi.new("char[]", 1 << 16)
    lib.rknpu_sim_report(text, 1 << 16)
    return json.loads(ffi.string(text))


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


@functools.cache
def kernel():
    """Return (ffi, library) that call the kernel, for a machine with an NPU."""
    ffi = simulator()[0]
    return ffi, ffi.dlopen(None)


class File:
    """An open node, of the simulator or of *system*."""

    def __init__(self, node, system=None):
        self.ffi, self.lib = system or simulator()[:2]
        self.fd = self.lib.open(node.encode(), os.O_RDWR | os.O_CLOEXEC)
        self.check(self.fd)

    def check(self, result):
        if result < 0:
            raise OSError(self.ffi.errno, errno.errorcode.get(self.ffi.errno))
        return result

    def ioctl(self, request, data):
        """Call with a copy of *data*; return the copy after the driver's changes."""
        buffer = self.ffi.new("char[]", bytes(data))
        result = self.lib.ioctl(self.fd, request, buffer)
        self.left = bytes(self.ffi.buffer(buffer, len(data)))  # also after a call that failed
        self.check(result)
        return self.left

    def map(self, nbytes, offset):
        at = self.lib.mmap(self.ffi.NULL, nbytes, 3, 1, self.fd, offset)
        if at == self.ffi.cast("void *", -1):
            self.check(-1)
        mapped = self.ffi.gc(at, lambda p: self.lib.munmap(p, nbytes), nbytes)
        return np.frombuffer(self.ffi.buffer(mapped, nbytes), np.uint8)

    def version(self):
        text = self.ffi.new("char[3][64]")
        at = [int(self.ffi.cast("uint64_t", text[i])) for i in range(3)]
        args = struct.pack("<iiii6Q", 0, 0, 0, 0, *(x for p in at for x in (64, p)))
        out = struct.unpack("<iiii6Q", self.ioctl(VERSION, args))
        return out[:3], [bytes(self.ffi.buffer(text[i], out[4 + 2 * i])).decode() for i in range(3)]

    def close(self):
        if self.fd >= 0:
            self.check(self.lib.close(self.fd))
            self.fd = -1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Rocket(File):
    """The mainline driver."""

    def __init__(self, node=ROCKET_NODE, system=None):
        super().__init__(node, system)

    def create(self, nbytes):
        size, handle, iova, offset = struct.unpack(
            "<IIQQ", self.ioctl(CREATE_BO, struct.pack("<IIQQ", nbytes, 0, 0, 0))
        )
        return Buffer(self, handle, iova, self.map(size, offset))

    def buffer(self, data, _flags=0):
        made = self.create(len(data))
        made.bytes[:] = np.frombuffer(data, np.uint8)
        made.fini()
        return made

    def submit(self, lists, inputs, outputs):
        """Submit one job; *lists* are (IOVA, number of words)."""
        ffi = self.ffi
        tasks = ffi.new("char[]", b"".join(struct.pack("<II", *each) for each in lists))
        ins = ffi.new("uint32_t[]", [b.handle for b in inputs])
        outs = ffi.new("uint32_t[]", [b.handle for b in outputs])
        at = [int(ffi.cast("uint64_t", p)) for p in (tasks, ins, outs)]
        job = ffi.new(
            "char[]", struct.pack("<QQQIIII", *at, len(lists), 8, len(inputs), len(outputs))
        )
        self.ioctl(SUBMIT_ROCKET, struct.pack("<QIIQ", int(ffi.cast("uint64_t", job)), 1, 40, 0))

    def run(self, lists, inputs, outputs, seconds=60):
        self.submit(lists, inputs, outputs)
        for out in outputs:
            out.prep(seconds)


class Rknpu(File):
    """The vendor's driver; *domain* is the IOMMU domain of buffers and jobs from now on."""

    domain = 0

    def __init__(self, node=RKNPU_NODE):
        super().__init__(node)

    def create(self, nbytes, flags=DATA):
        args = struct.pack("<IIQQQQiI", 0, flags, nbytes, 0, 0, 0, self.domain, 0)
        handle, _, _, obj, iova, *_ = struct.unpack("<IIQQQQiI", self.ioctl(MEM_CREATE, args))
        _, _, offset = struct.unpack("<IIQ", self.ioctl(MEM_MAP, struct.pack("<IIQ", handle, 0, 0)))
        made = Buffer(self, handle, iova, self.map(nbytes, offset))
        made.obj, made.flags = obj, flags
        return made

    def buffer(self, data, flags=DATA):
        made = self.create(len(data), flags)
        made.bytes[:] = np.frombuffer(data, np.uint8)
        made.fini()
        return made

    def submit(self, tasks, count, mask=1, slots=None, **fields):
        """Submit and wait; return (task_counter, hw_elapse_time, fence_fd)."""
        values = {"flags": PC | PINGPONG, "timeout": 6000, "fence_fd": -1} | fields
        slots = slots or [(0, count), (count, 0), (count, 0), (0, 0), (0, 0)]
        head = (values["flags"], values["timeout"], 0, count, 0, 0, tasks.obj, self.domain, 0, 0, 0)
        ranges = [number for slot in slots for number in slot]
        args = struct.pack("<IIIIIiQIIQqIi10I", *head, mask, values["fence_fd"], *ranges)
        out = struct.unpack("<IIIIIiQIIQqIi10I", self.ioctl(SUBMIT, args))
        return out[4], out[10], out[12]

    def action(self, number, value=0):
        return struct.unpack("<II", self.ioctl(ACTION, struct.pack("<II", number, value)))[1]


class Buffer:
    """A buffer of either driver, mapped."""

    def __init__(self, file, handle, iova, mapped):
        self.file, self.handle, self.iova, self.bytes = file, handle, iova, mapped
        self.obj = self.flags = 0

    def prep(self, seconds=60):
        """Make the NPU's writes visible to the CPU; on rocket, also wait for the job."""
        if isinstance(self.file, Rocket):
            args = struct.pack("<IIq", self.handle, 0, now() + int(seconds * SECOND))
            self.file.ioctl(PREP_BO, args)
        elif self.flags & 2:
            self._sync(2)

    def fini(self):
        """Make the CPU's writes visible to the NPU."""
        if isinstance(self.file, Rocket):
            self.file.ioctl(FINI_BO, struct.pack("<II", self.handle, 0))
        elif self.flags & 2:
            self._sync(1)

    def _sync(self, direction):
        self.file.ioctl(MEM_SYNC, struct.pack("<IIQQQ", direction, 0, self.obj, 0, len(self.bytes)))

    def destroy(self):
        self.file.ioctl(GEM_CLOSE, struct.pack("<II", self.handle, 0))


def entry(address, words, enable=0x1D, **fields):
    """Return a struct rknpu_task: *words* with the tail of four."""
    values = {"int_mask": 0x300, "enable_mask": enable, "amount": words - 4} | fields
    return struct.pack(
        "<8IQ", 0, 0, values["enable_mask"], values["int_mask"], 0x1FFFF, 0, values["amount"], 0,
        address,
    )  # fmt: skip
