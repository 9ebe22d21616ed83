"""A session: npurt's code in a process on the DSP, and the memory mapped into that process."""

import contextlib
import secrets
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeVar

from npurt.errors import DeviceFull, DeviceLost, DeviceTimeout, DriverError
from npurt.hexagon.fastrpc import abi, codes
from npurt.hexagon.fastrpc.abi import HandleRequest
from npurt.hexagon.fastrpc.control import Capabilities, capabilities, session_pool
from npurt.hexagon.fastrpc.handle import HandleState, Invocation
from npurt.hexagon.fastrpc.lib import Library
from npurt.hexagon.fastrpc.native_call import NativeCall
from npurt.hexagon.fastrpc.rpcmem import U8, Block, Synchroniser, allocate
from npurt.hexagon.idl.interface import interface
from npurt.hexagon.session import messages, skel
from npurt.hexagon.session.owned import Owned
from npurt.hexagon.session.transport import Info, Send, Transport, TransportName

T = TypeVar("T")

NONCE_MASK = 0x9E37_79B9_7F4A_7C15  # echo answers nonce ^ NONCE_MASK: idl/npurt.idl
OPENING_SECONDS = 30  # the kernel's own timeout is 10
LATENCY_US = 100  # time in which the CPU may wake up for an answer


class Session(Transport):
    """An open session, which is also the default transport: one FastRPC invoke for each batch.

    It closes itself when the last reference to it is dropped, or at exit.

    Attributes:
        library: The FastRPC library.
        slot: The DSP and the number of the session.
        capabilities: The properties that the DSP reported before the session was opened.
        info: The properties that npurt's code reported after it was started.
        deadline: Seconds that a call may take.
    """

    name = TransportName.INVOKE

    def __init__(self, owned: Owned, told: Capabilities, deadline: float) -> None:
        self.library = owned.library
        self.slot = owned.slot
        self.simulated = owned.library.simulated
        self.capabilities = told
        self._owned = owned
        self.deadline = deadline
        self._synchronise = Synchroniser(owned.library)
        self._finalizer = weakref.finalize(self, owned.release)
        self.info = self._handshake()

    @classmethod
    def open(
        cls, library: Library, domain: str = "cdsp", session: int | None = None, *, deadline: float
    ) -> Self:
        """Start npurt's code in a new session; if a step fails, undo the earlier steps.

        Args:
            library: The FastRPC library.
            domain: The DSP, a key of `abi.CDSP`.
            session: The number of the session, 0 to 3; None takes any free session.
            deadline: Seconds that each later call may take.

        Raises:
            DeviceNotFound: There is no such DSP or session, or npurt has no code for the DSP.
            DriverError: The session cannot be opened; the message gives the reason.
        """
        slot = session_pool(library).acquire(domain, session)
        with contextlib.ExitStack() as undo:
            undo.callback(session_pool(library).release, slot)
            owned = Owned(library, slot, interface())
            undo.pop_all()
            undo.callback(owned.release)
            told = owned.caller.run(
                partial(capabilities, library, domain), OPENING_SECONDS, "GET_DSP_INFO"
            )
            owned.caller.run(partial(_start, owned, told.arch), OPENING_SECONDS, codes.OPEN)
            opened = cls(owned, told, deadline)
            undo.pop_all()
        return opened

    def _handshake(self) -> Info:
        """Check that calls arrive, and that the skel has this version; return its `Info`."""
        nonce = secrets.randbits(64)
        (answer,) = self.call("echo", nonce)
        if answer != nonce ^ NONCE_MASK:
            raise DeviceLost(
                f"{self.slot.domain}: calls do not arrive: echo of {nonce:#x} returned {answer:#x}",
                remedy=codes.DOCTOR,
                call=codes.INVOKE,
                code=0,
            )
        (info,) = self.call("info")
        known = Info(**info)
        if known.protocol != messages.PROTOCOL:
            raise DriverError(
                f"the skel has protocol {known.protocol}, and npurt has {messages.PROTOCOL}",
                remedy="reinstall npurt, and check DSP_LIBRARY_PATH for an old copy of the skel",
                call="info",
                code=known.protocol,
            )
        return known

    @property
    def alive(self) -> bool:
        """Whether calls can be made: False after a loss, a timeout or `close`."""
        handle = self._owned.handle
        return handle is not None and handle.state is HandleState.OPEN

    def call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Call a method of npurt's code and return its results.

        Raises:
            DeviceLost: The DSP process is gone.
            DeviceTimeout: The DSP did not answer in time; the session refuses all further calls.
            DriverError: The method failed.
        """
        return self.run(partial(self._owned.call, name, *arguments), name)

    def prepare(self, request: U8, reply: U8) -> Send:
        """Return a function that calls the method `execute`; its errors are those of `call`."""
        assert self._owned.handle
        call = interface().method("execute").pack(request.data, reply.data)
        invocation = Invocation(call)
        return partial(self._execute, invocation, self._owned.handle.native(invocation))

    def _execute(
        self,
        invocation: Invocation,
        native: NativeCall,
        written: Block | None = None,
        read: Block | None = None,
    ) -> None:
        """Make a native call; if the session's thread is busy, queue the call."""
        handle = self._owned.handle
        assert handle
        handle.require_open(codes.INVOKE)
        if written is not None:
            self._synchronise.for_device(written.fd)
        try:
            answer = self._owned.caller.call(native, self.deadline, "execute")
        except DeviceTimeout as error:
            self.die(error.what)
            raise
        if answer is None:
            self.run(partial(handle.invoke, invocation), "execute")
        elif answer[0]:
            raise handle.failed(invocation, *answer)
        if read is not None:
            self._synchronise.for_cpu(read.fd)

    def run(self, work: Callable[[], T], what: str) -> T:
        """Call *work* on the session's thread; after a timeout all further calls are refused."""
        return self._owned.run(work, self.deadline, what)

    def settle(self) -> None:
        """Wait until an interrupted call has ended.

        Raises:
            DeviceTimeout: The call did not end in time; the session refuses all further calls.
        """
        self._owned.caller.settle(self.deadline)

    def require_open(self, call: str) -> None:
        """Raise if *call* cannot be made; see `Handle.require_open`."""
        assert self._owned.handle
        self._owned.handle.require_open(call)

    def die(self, why: str) -> None:
        """Refuse all further calls."""
        self._owned.die(why)

    def before_closing(self, work: Callable[[], Any]) -> None:
        """Have the session call *work* on its thread before it closes, and ignore its errors.

        *work* must not refer to the session, because the session would then never be deleted.
        """
        self._owned.first.append(work)

    def call_before_closing(self, name: str) -> None:
        """Have the session call a method of npurt's code before it closes; see `before_closing`."""
        self.before_closing(partial(self._owned.call, name))

    def allocate(self, nbytes: int) -> Block:
        """Allocate and map shared memory; see `rpcmem.allocate` and `map`."""
        block = allocate(self.library, nbytes)
        self.map(block)
        return block

    def map(self, block: Block) -> None:
        """Map *block* on the DSP until `free` or the end of the session.

        The session refers to *block* during this time, so its memory is not freed.

        Raises:
            DeviceFull: The session cannot map so many bytes.
            DeviceLost: The DSP process is gone.
        """
        try:
            self.run(partial(self._owned.map, block), "map")
        except (DeviceLost, DeviceTimeout):
            raise
        except DriverError as error:
            self.call("echo", 0)  # raises DeviceLost if the DSP process is gone
            raise DeviceFull(
                f"the session cannot map {block.nbytes} more bytes: {error.what}",
                remedy="close other programs that use the DSP, or use a smaller model or context",
                call=error.call,
                code=error.code,
            ) from error

    def free(self, block: Block) -> None:
        """Unmap *block*; see `Transport.free`."""
        self.run(partial(self._owned.unmap, block.fd), "unmap")

    def sync_for_device(self, block: Block) -> None:
        """Clean the CPU's caches of *block*; errors as `Synchroniser`."""
        self._synchronise.for_device(block.fd)

    def sync_for_cpu(self, block: Block) -> None:
        """Invalidate the CPU's caches of *block*; errors as `Synchroniser`."""
        self._synchronise.for_cpu(block.fd)

    def packets(self) -> int:
        """Return the packets that the simulator has counted; hardware does not count them: 0."""
        if "npurt_sim_total_packets" not in self.library.features:
            return 0
        return int(self.library.c.npurt_sim_total_packets(self.slot.effective))

    def close(self) -> None:
        """Release the session and its memory.  A second call does nothing."""
        self._finalizer()


def _start(owned: Owned, arch: int | None) -> None:
    """Load npurt's code on the DSP; runs on the session's thread."""
    code = skel.choose(arch)
    skel.publish(code)
    owned.open(skel.module(code))
    if owned.handle and "remote_handle64_control" in owned.library.features:
        wish = abi.ffi().new("remote_rpc_control_latency *", [abi.PM_QOS, LATENCY_US])
        owned.handle.control(HandleRequest.LATENCY, wish)  # the result is ignored: it is optional
