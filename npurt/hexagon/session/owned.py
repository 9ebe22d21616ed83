"""What a session owns on the CPU and the DSP, and how it is released."""

import contextlib
import os
from collections.abc import Callable
from typing import Any, TypeVar

from npurt.errors import DeviceTimeout, NpurtError
from npurt.hexagon.fastrpc import abi
from npurt.hexagon.fastrpc.abi import MapFlag
from npurt.hexagon.fastrpc.caller import Caller
from npurt.hexagon.fastrpc.control import SessionSlot, session_pool
from npurt.hexagon.fastrpc.handle import Handle, Invocation, State
from npurt.hexagon.fastrpc.lib import Library
from npurt.hexagon.fastrpc.rpcmem import Block
from npurt.hexagon.idl import Interface

T = TypeVar("T")

CLOSING_SECONDS = 10


class Owned:
    """The resources of a session, and their release: memory, handle, thread, number."""

    def __init__(self, library: Library, slot: SessionSlot, interface: Interface) -> None:
        self.library = library
        self.slot = slot
        self.interface = interface
        self.caller = Caller(f"{slot.domain} session {slot.session}")
        self.handle: Handle | None = None
        self.blocks: dict[int, Block] = {}  # mapped, by fd
        self.first: list[Callable[[], Any]] = []  # to be done before, last in, first out
        self._process = os.getpid()
        self._released = False

    def release(self) -> None:
        """Let go of everything, in order, on the session's thread, as soon as that is free."""
        if self._process == os.getpid() and not self._released:  # a fork has no such thread
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
        ended = bool(self.handle and self.handle.state in (State.OPEN, State.DEAD))
        if self.handle:
            self.handle.close()
        self.blocks.clear()
        session_pool(self.library).release(self.slot, ended=ended)

    def open(self, module: str) -> None:
        """Load *module*, as in `SessionPool.uri`; on the session's thread."""
        pool = session_pool(self.library)
        pool.allow_unsigned(self.slot)
        self.handle = Handle(self.library, pool.uri(self.slot, module))
        self.handle.open()

    def run(self, work: Callable[[], T], deadline: float, what: str) -> T:
        """Do *work* on the session's thread; a timeout makes the session dead."""
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
        """Call a method of the skel; return what came back.  On the session's thread."""
        assert self.handle
        call = self.interface.method(name).pack(*arguments)
        self.handle.invoke(Invocation(call))
        return call.unpack()

    def map(self, block: Block) -> None:
        """Map *block* on the DSP.  A failure leaves nothing mapped."""
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
        """Unmap a block: first in our code on the DSP, which knows it by number."""
        block = self.blocks.pop(fd)
        address = abi.ffi().cast("void *", block.array.ctypes.data)
        try:
            if self.handle and self.handle.state is State.OPEN:
                self.call("unmap", fd)
        finally:
            self.library.call("fastrpc_munmap", self.slot.effective, fd, address, block.nbytes)
