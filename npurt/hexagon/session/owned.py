"""The resources of a session on the CPU and the DSP, and their release."""

import contextlib
import os
from collections.abc import Callable
from typing import Any, TypeVar

from npurt.errors import DeviceTimeout, NpurtError
from npurt.hexagon.fastrpc import abi
from npurt.hexagon.fastrpc.abi import MapFlag
from npurt.hexagon.fastrpc.caller import Caller
from npurt.hexagon.fastrpc.control import SessionSlot, session_pool
from npurt.hexagon.fastrpc.handle import Handle, HandleState, Invocation
from npurt.hexagon.fastrpc.lib import Library
from npurt.hexagon.fastrpc.rpcmem import Block
from npurt.hexagon.idl import Interface

T = TypeVar("T")

CLOSING_SECONDS = 10


class Owned:
    """The resources of a session: memory, handle, thread and session number."""

    def __init__(self, library: Library, slot: SessionSlot, interface: Interface) -> None:
        self.library = library
        self.slot = slot
        self.interface = interface
        self.caller = Caller(f"{slot.domain} session {slot.session}")
        self.handle: Handle | None = None
        self.blocks: dict[int, Block] = {}  # mapped, by fd
        self.first: list[Callable[[], Any]] = []  # called before the release, the last one first
        self._process = os.getpid()
        self._released = False

    def release(self) -> None:
        """Release all resources on the session's thread, after its current job."""
        if self._process == os.getpid() and not self._released:  # a fork does not have the thread
            self._released = True
            self.caller.close(self._close, CLOSING_SECONDS)

    def _close(self) -> None:
        self.caller.hang_up()
        while self.first:
            with contextlib.suppress(NpurtError):
                self.first.pop()()
        for fd in list(self.blocks):
            with contextlib.suppress(NpurtError):
                self.unmap(fd)
        ended = bool(self.handle and self.handle.state in (HandleState.OPEN, HandleState.DEAD))
        if self.handle:
            self.handle.close()
        self.blocks.clear()
        session_pool(self.library).release(self.slot, ended=ended)

    def open(self, module: str) -> None:
        """Load *module*, named as in `SessionPool.uri`; runs on the session's thread."""
        pool = session_pool(self.library)
        pool.allow_unsigned(self.slot)
        self.handle = Handle(self.library, pool.uri(self.slot, module))
        self.handle.open()

    def run(self, work: Callable[[], T], deadline: float, what: str) -> T:
        """Call *work* on the session's thread; after a timeout all further calls are refused."""
        try:
            return self.caller.run(work, deadline, what)
        except DeviceTimeout as error:
            self.die(error.what)
            raise

    def die(self, why: str) -> None:
        """Refuse all further calls."""
        if self.handle:
            self.handle.die(why)

    def call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Call a method of the skel and return its results; runs on the session's thread."""
        assert self.handle
        call = self.interface.method(name).pack(*arguments)
        self.handle.invoke(Invocation(call))
        return call.unpack()

    def map(self, block: Block) -> None:
        """Map *block* on the DSP; after a failure the block is not mapped."""
        address = abi.ffi().cast("void *", block.array.ctypes.data)
        area = self.slot.effective, block.fd, address
        self.library.check("fastrpc_mmap", *area, 0, block.nbytes, MapFlag.FD_DELAYED)
        try:
            self.call("map", block.fd, block.nbytes)
        except BaseException:
            self.library.call("fastrpc_munmap", *area, block.nbytes)
            raise
        self.blocks[block.fd] = block

    def unmap(self, fd: int) -> None:
        """Unmap the block with descriptor *fd*, in npurt's code on the DSP and then in FastRPC."""
        block = self.blocks.pop(fd)
        address = abi.ffi().cast("void *", block.array.ctypes.data)
        try:
            if self.handle and self.handle.state is HandleState.OPEN:
                self.call("unmap", fd)
        finally:
            self.library.call("fastrpc_munmap", self.slot.effective, fd, address, block.nbytes)
