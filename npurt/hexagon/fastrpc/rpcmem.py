"""Memory that CPU and DSP share: blocks of rpcmem, and parts of them.

A block lives as long as anybody can reach it: numpy arrays of it keep it, and so does the session
that has it mapped.  So nothing is freed that the DSP or Python may still touch.
Source: qualcomm/fastrpc v1.0.5 src/rpcmem_linux.c, and running it.
"""

import errno
import mmap
import os
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import DeviceFull, DriverError, LayoutError
from npurt.hexagon.fastrpc import abi
from npurt.hexagon.fastrpc.abi import SyncFlag
from npurt.hexagon.fastrpc.lib import Library
from npurt.ranges import Ranges

U8 = npt.NDArray[np.uint8]

ALIGN = 128  # bytes: an HVX vector; offsets of tensors are multiples of it
LARGEST = (1 << 31) - mmap.PAGESIZE  # the library keeps sizes in an int, and loses what is beyond


class Block:
    """Shared memory; other array libraries view its bytes by DLPack, and keep it alive.

    Attributes:
        array: The bytes.
        fd: The number by which the DSP knows it.
    """

    def __init__(self, array: U8, fd: int) -> None:
        self.array = array
        self.fd = fd

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return int(self.array.nbytes)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Synchroniser:
    """DMA_BUF_IOCTL_SYNC of whole blocks: the kernel cannot synchronise a part.

    Its methods do nothing if *fd* is ordinary memory and no dma-buf: such memory needs no
    synchronising.  They raise DriverError when the kernel refuses.
    """

    def __init__(self, library: Library) -> None:
        self._ioctl = library.ioctl
        self._end_write = abi.ffi().new("uint64_t *", SyncFlag.END | SyncFlag.WRITE)
        self._start_read = abi.ffi().new("uint64_t *", SyncFlag.READ)

    def for_device(self, fd: int) -> None:
        """Make the host's writes visible to the DSP."""
        if self._ioctl(fd, abi.DMA_BUF_IOCTL_SYNC, self._end_write) < 0:
            self._again(fd, self._end_write)

    def for_cpu(self, fd: int) -> None:
        """Make the DSP's writes visible to the host."""
        if self._ioctl(fd, abi.DMA_BUF_IOCTL_SYNC, self._start_read) < 0:
            self._again(fd, self._start_read)

    def _again(self, fd: int, request: Any) -> None:
        """Raise the error of a failed request, or repeat one that a signal interrupted."""
        number = abi.ffi().errno
        while number in (errno.EINTR, errno.EAGAIN):
            if self._ioctl(fd, abi.DMA_BUF_IOCTL_SYNC, request) >= 0:
                return
            number = abi.ffi().errno
        if number != errno.ENOTTY:
            raise DriverError(
                f"DMA_BUF_IOCTL_SYNC of shared memory failed: {os.strerror(number)}",
                remedy="update kernel and FastRPC library: `npurt doctor` lists both",
                call="DMA_BUF_IOCTL_SYNC",
                code=number,
            )


def allocate(library: Library, nbytes: int) -> Block:
    """Take *nbytes* of rpcmem, rounded up to pages; its content is arbitrary.

    Raises:
        DeviceFull: There is not so much.
        LayoutError: *nbytes* is not from 1 to 2 GiB less a page.
    """
    if not 1 <= nbytes <= LARGEST:
        raise LayoutError(
            f"a shared block cannot have {nbytes} bytes",
            remedy=f"use 1 to {LARGEST} bytes for each block",
        )
    ffi = abi.ffi()
    size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    name = "rpcmem_alloc2" if "rpcmem_alloc2" in library.features else "rpcmem_alloc"
    memory = getattr(library.c, name)(abi.HEAP_SYSTEM, abi.CACHED, size)
    address = int(ffi.cast("uintptr_t", memory))
    if address in (0, abi.INVALID):
        raise _none_left(name, size, address)
    owned = ffi.gc(memory, library.c.rpcmem_free)
    fd = int(library.c.rpcmem_to_fd(memory))
    if fd < 0:
        raise _none_left("rpcmem_to_fd", size, fd)
    return Block(np.frombuffer(ffi.buffer(owned, size), np.uint8), fd)


def _none_left(call: str, nbytes: int, answer: int) -> DeviceFull:
    return DeviceFull(
        f"{call} of {nbytes} bytes gave {answer:#x}: there is no such memory to share with the DSP",
        remedy="close other programs, use a smaller model, and check that /dev/dma_heap/system can "
        "be opened: see `npurt doctor`",
        call=call,
        code=answer & 0xFFFF_FFFF,
    )


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a block, as messages name it."""

    block: Block
    offset: int
    nbytes: int

    @property
    def array(self) -> U8:
        """Its bytes."""
        return self.block.array[self.offset : self.offset + self.nbytes]


def aligned(nbytes: int) -> int:
    """Return *nbytes* rounded up to `ALIGN`."""
    return -(-nbytes // ALIGN) * ALIGN


class Arena:
    """An allocator of parts of one block."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self._ranges = Ranges(block.nbytes, ALIGN)
        self._returned: deque[Slice] = deque()

    def allocate(self, nbytes: int) -> Slice | None:
        """Return *nbytes* bytes, aligned, or None when they do not fit anywhere."""
        while self._returned:
            part = self._returned.popleft()
            self._ranges.free(part.offset, part.nbytes)
        start = self._ranges.allocate(nbytes)
        return None if start is None else Slice(self.block, start, nbytes)

    def free(self, part: Slice) -> None:
        """Return *part* to the arena.  May be called at any moment, by a finalizer too."""
        self._returned.append(part)
