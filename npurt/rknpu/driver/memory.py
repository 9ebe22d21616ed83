"""Allocate buffers that CPU and NPU share, in the NPU's address spaces, and clean their caches.

The NPU never writes to inputs, so inputs are only cleaned.  Caches of results are invalidated after
a job.
"""

import abc
import errno
import os
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from npurt.base.ranges import Ranges
from npurt.errors import DeviceFull, DriverError, LayoutError
from npurt.rknpu.driver.native.run import U8, IoctlCall
from npurt.rknpu.driver.system import LinuxKernel
from npurt.rknpu.plan.proof import BufferSpan, Role

SPACE_END = 1 << 32  # registers have 32 bits for an address
MIN_CHUNK, MAX_CHUNK = 1 << 16, 1 << 20  # bytes; rocket always cleans whole chunks
PAGE = 4096  # bytes
_NO_SPACE = (errno.ENOMEM, errno.ENOSPC, errno.EFAULT)  # EFAULT: rknpu, for memory beyond 4 GiB


class Created(NamedTuple):
    """Memory that a driver created."""

    handle: int
    address: int
    memory: U8
    cookie: int = 0  # rknpu's second handle of the memory, obj_addr


class Buffer:
    """Memory that CPU and NPU share.  The CPU may access it only inside `cpu_access`.

    The same rule holds for views of the array of `cpu_access` in other array libraries, also by
    DLPack.

    Attributes:
        nbytes: The size in bytes.
        address: The address in the NPU's address space.
        role: The use that the NPU makes of the buffer.
        name: The purpose, for messages.
        alive: False after the buffer was freed.
        span: Address range, role and name, for proofs.
    """

    def __init__(
        self, space: "Space", created: Created, nbytes: int, role: Role, name: str
    ) -> None:
        self.nbytes = nbytes
        self.address = created.address
        self.handle = created.handle
        self.cookie = created.cookie
        self.role = role
        self.name = name
        self.alive = True
        self.space = space
        self.span = BufferSpan(self.address, self.address + nbytes, role, name)
        self._memory = created.memory

    @contextmanager
    def cpu_access(self, *, write: bool, nbytes: int | None = None) -> Iterator[U8]:
        """Yield *nbytes* from the start, by default all; with *write*, clean caches afterwards.

        The NPU's results are visible after `Driver.run` returned.

        Raises:
            LayoutError: The buffer was freed.
        """
        if not self.alive:
            raise LayoutError(f"buffer {self.name} was freed", remedy="allocate it again")
        yield self._memory[:nbytes]
        if write:
            self.clean(0, self.nbytes if nbytes is None else nbytes)

    def clean(self, start: int, end: int) -> None:
        """Clean the caches from *start* to *end*, so that the NPU reads the CPU's data."""
        for call in self.space.clean_calls(self, start, end):
            self.space.system.ioctl(call.fd, call.request, call.argument)

    def window(self, start: int, end: int) -> U8:
        """Return bytes *start* to *end*, for a prepared job that stores the view.

        The NPU reads data written to the view if the job has this buffer as an input.  The NPU's
        results are visible after `Driver.run` returned.

        Raises:
            LayoutError: The buffer was freed.
        """
        with self.cpu_access(write=False) as memory:
            return memory[start:end]

    def free(self) -> None:
        """Free the buffer in the driver.  A second call does nothing."""
        if self.alive:
            self.alive = False
            self.space.forget(self)


class Suballocation:
    """A part of a buffer that several jobs share; `Space.suballocate` returns it.

    Attributes:
        buffer: The buffer.
        start: The offset in the buffer.
        nbytes: The size in bytes.
        address: The address in the NPU's address space.
        alive: False after the part was freed.
    """

    def __init__(self, buffer: Buffer, ranges: Ranges, start: int, nbytes: int) -> None:
        self.buffer = buffer
        self.start = start
        self.nbytes = nbytes
        self.address = buffer.address + start
        self.alive = True
        self._ranges = ranges

    @property
    def space(self) -> "Space":
        """The address space of the buffer."""
        return self.buffer.space

    @property
    def name(self) -> str:
        """The purpose of the buffer, for messages."""
        return self.buffer.name

    @contextmanager
    def write(self) -> Iterator[U8]:
        """Yield the bytes for writing; clean their caches afterwards."""
        with self.buffer.cpu_access(write=False) as memory:
            yield memory[self.start : self.start + self.nbytes]
        self.buffer.clean(self.start, self.start + self.nbytes)

    def free(self) -> None:
        """Free this part of the buffer.  A second call does nothing."""
        if self.alive:
            self.alive = False
            self._ranges.free(self.start, self.nbytes)
            self.space.freed += 1


class Space(abc.ABC):
    """An address space of the NPU: with rocket one for each core, with rknpu one for all cores.

    Args:
        system: The kernel.
        fd: The open node of the driver; `close` closes it.
    """

    def __init__(self, system: LinuxKernel, fd: int) -> None:
        self.system = system
        self.fd = fd
        self._pid = os.getpid()
        self._buffers: dict[int, Buffer] = {}  # address -> buffer
        self.spans: list[BufferSpan] = []  # every buffer, sorted by address, for `proof.prove`
        self.freed = 0  # number of freed buffers; after a change, jobs check their buffers
        self._chunks: dict[Role, list[tuple[Buffer, Ranges]]] = {}  # chunks of `suballocate`

    @property
    def is_ours(self) -> bool:
        """False after `close`, and in processes that were forked after the file was opened."""
        return self.fd >= 0 and os.getpid() == self._pid

    def close(self) -> None:
        """Close the file, which frees every buffer.  A second call does nothing."""
        if self.fd >= 0:
            self._close_file()
            self.fd = -1
            self.drop()

    def drop(self) -> None:
        """Forget all buffers, which the driver frees when the file is closed."""
        for buffer in self._buffers.values():
            buffer.alive = False
        self._buffers.clear()
        self._chunks.clear()
        self.spans.clear()

    def _close_file(self) -> None:
        self.system.close(self.fd)

    def at(self, span: BufferSpan) -> Buffer:
        """Return the buffer of a span."""
        return self._buffers[span.start]

    def alloc(self, nbytes: int, role: Role, name: str) -> Buffer:
        """Allocate *nbytes* of uninitialised memory.

        Raises:
            DeviceFull: Memory, or address space below 4 GiB, is used up.
            DriverError: The driver refuses the request.
        """
        try:
            created = self._create(nbytes, role)
        except DriverError as error:
            if error.code in _NO_SPACE:
                raise self._full(nbytes, name, error) from error
            raise
        buffer = Buffer(self, created, nbytes, role, name)
        if buffer.address + nbytes > SPACE_END:
            self._destroy(buffer)
            raise self._full(nbytes, name, None)
        self._buffers[buffer.address] = buffer
        insort(self.spans, buffer.span, key=lambda span: span.start)
        return buffer

    def suballocate(
        self,
        nbytes: int,
        role: Role,
        name: str,
        step: int,
        make_space: Callable[[], bool],
    ) -> Suballocation:
        """Allocate *nbytes* in a chunk, a buffer that is divided among users with one *role*.

        Args:
            step: The start is a multiple of this.
            make_space: Called if memory is used up; frees memory, or returns False if it cannot.

        Raises:
            DeviceFull: Memory is used up, and *make_space* returned False.
            DriverError: The driver refuses the request.
        """
        chunks = self._chunks.setdefault(role, [])
        while True:
            for buffer, ranges in chunks:
                start = ranges.allocate(nbytes)
                if start is not None:
                    return Suballocation(buffer, ranges, start, nbytes)
            try:
                chunks.append(self._chunk(nbytes, role, name, step))
            except DeviceFull:
                if not make_space():
                    raise

    def trim(self) -> None:
        """Free the chunks of `suballocate` that have no allocated part."""
        for role, chunks in self._chunks.items():
            for buffer, ranges in chunks:
                if ranges.is_free:
                    buffer.free()
            self._chunks[role] = [chunk for chunk in chunks if chunk[0].alive]

    def _chunk(self, nbytes: int, role: Role, name: str, step: int) -> tuple[Buffer, Ranges]:
        """Allocate a chunk of twice the last size; if that fails, only *nbytes*."""
        minimum = -(-nbytes // PAGE) * PAGE
        usual = min(MIN_CHUNK << len(self._chunks[role]), MAX_CHUNK)
        try:
            buffer = self.alloc(max(usual, minimum), role, name)
        except DeviceFull:
            buffer = self.alloc(minimum, role, name)
        return buffer, Ranges(buffer.nbytes, step)

    @property
    def used(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def _full(self, nbytes: int, name: str, error: DriverError | None) -> DeviceFull:
        return DeviceFull(
            f"no space{'' if error else ' below 4 GiB'} for {nbytes} bytes of {name}; the NPU's "
            f"buffers have {self.used} bytes" + (f": {error.what}" if error else ""),
            remedy="run a smaller model or a shorter context; after many runs with the vendor's "
            "driver, restart the board, because the driver's address space is fragmented",
            call=error.call if error else "alloc",
            code=error.code if error else errno.ENOMEM,
        )

    def forget(self, buffer: Buffer) -> None:
        """Destroy a buffer; `Buffer.free` calls this method."""
        del self._buffers[buffer.address]
        self.spans.remove(buffer.span)
        self.freed += 1
        if self.is_ours:
            self._destroy(buffer)

    @abc.abstractmethod
    def _create(self, nbytes: int, role: Role) -> Created:
        """Create and map memory."""

    @abc.abstractmethod
    def _destroy(self, buffer: Buffer) -> None:
        """Destroy memory."""

    @abc.abstractmethod
    def clean_calls(self, buffer: Buffer, start: int, end: int) -> list[IoctlCall]:
        """Return the calls that clean the caches of bytes *start* to *end* for the NPU."""
