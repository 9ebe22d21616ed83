"""Memory shared between CPU and DSP: blocks of rpcmem, and allocation of parts of a block.

A block is freed when neither a numpy array nor a session that has it mapped refers to it.  So
memory is never freed while Python or the DSP may access it.
Source: qualcomm/fastrpc v1.0.5 src/rpcmem_linux.c, and tests with that version.
"""

import errno
import mmap
import os
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.base.ranges import Ranges
from npurt.errors import DeviceFull, DriverError, LayoutError
from npurt.hexagon.fastrpc import abi
from npurt.hexagon.fastrpc.abi import SyncFlag
from npurt.hexagon.fastrpc.lib import Library

U8 = npt.NDArray[np.uint8]

ALIGN = 128  # bytes of an HVX vector; offsets of tensors are multiples of it
LARGEST = (1 << 31) - mmap.PAGESIZE  # the library truncates larger sizes to an int


class Block:
    """A block of shared memory; other array libraries can view its bytes through DLPack.

    Attributes:
        array: The bytes.
        fd: The file descriptor, by which messages to the DSP name the block.
    """

    def __init__(self, array: U8, fd: int) -> None:
        self.array = array
        self.fd = fd

    @property
    def nbytes(self) -> int:
        """The size of the block in bytes."""
        return int(self.array.nbytes)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Synchroniser:
    """Synchronises whole blocks with DMA_BUF_IOCTL_SYNC; the kernel cannot synchronise a part.

    Its methods do nothing if *fd* is not a dma-buf, because ordinary memory needs no
    synchronisation.  They raise DriverError if the kernel returns an error.
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
        """Repeat the request if a signal interrupted it; else raise its error."""
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
    """Allocate *nbytes* of rpcmem, rounded up to whole pages; the content is arbitrary.

    Raises:
        DeviceFull: The system has no such amount of shared memory.
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
        f"{call} of {nbytes} bytes gave {answer:#x}: there is no memory to share with the DSP",
        remedy="close other programs, use a smaller model, and check that /dev/dma_heap/system can "
        "be opened: see `npurt doctor`",
        call=call,
        code=answer & 0xFFFF_FFFF,
    )


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a block, given by block, offset and size as in messages to the DSP."""

    block: Block
    offset: int
    nbytes: int

    @property
    def array(self) -> U8:
        """The bytes of the part."""
        return self.block.array[self.offset : self.offset + self.nbytes]


def aligned(nbytes: int) -> int:
    """Return *nbytes* rounded up to `ALIGN`."""
    return -(-nbytes // ALIGN) * ALIGN


class BlockAllocator:
    """Allocates parts of one block."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self._ranges = Ranges(block.nbytes, ALIGN)
        self._returned: deque[Slice] = deque()

    def allocate(self, nbytes: int) -> Slice | None:
        """Return an aligned part of *nbytes*, or None if no free range is large enough."""
        while self._returned:
            part = self._returned.popleft()
            self._ranges.free(part.offset, part.nbytes)
        start = self._ranges.allocate(nbytes)
        return None if start is None else Slice(self.block, start, nbytes)

    def free(self, part: Slice) -> None:
        """Free *part*.  A finalizer may call this at any moment."""
        self._returned.append(part)
