"""States of gated delta nets on the DSP, and the calls that take them through tokens.

A state stays in memory that host and DSP share, in the format that delta.h describes.  The host
keeps a copy of an earlier state, and the rows of the tokens since then.  The same rows sent again
give the same bits, so a call that breaks off half-way loses nothing.
"""

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.delta import ALL, DeltaNet, DeltaState
from npurt.device import F32, MAX_ROWS
from npurt.errors import DeviceFull, NpurtError
from npurt.hexagon.device.scratch import BATCH_BYTES
from npurt.hexagon.device.session_memory import SessionMemory
from npurt.hexagon.fastrpc.rpcmem import LARGEST, Block
from npurt.hexagon.layout import delta
from npurt.hexagon.layout.delta import I32, Shape
from npurt.hexagon.session import messages
from npurt.hexagon.session.messages import Flag, Kind, Request

MOST_TOKENS = MAX_ROWS  # of all sequences, in a batch
MOST_ROWS = 32  # that are kept rather than a state: together they are about half its size

OnSession = Callable[[Callable[[SessionMemory], None]], None]


def why_not(net: DeltaNet) -> str | None:
    """Return None, or the first rule that *net* breaks."""
    shape = delta.shape_of(net)
    if shape.width % 16 or not 0 < shape.width <= messages.MAX_WIDTH:
        return f"heads are {shape.width} wide, not a multiple of 16 up to {messages.MAX_WIDTH}"
    if not 0 < shape.heads <= messages.MAX_HEADS or shape.heads % shape.k_heads:
        return f"{shape.heads} heads of v do not share {shape.k_heads} of k"
    if net.decay.shape[3] not in (1, shape.width):
        return f"a head has {net.decay.shape[3]} decays, not 1 or {shape.width}"
    if not 0 < shape.sequences <= MOST_TOKENS:
        return f"{shape.sequences} sequences are none, or more than {MOST_TOKENS}"
    if shape.sequences * sum(shape.row_bytes) > BATCH_BYTES:
        return f"a token of all sequences takes more than {BATCH_BYTES} bytes"
    if shape.state_bytes > LARGEST:
        return f"its states take more than {LARGEST} bytes, the largest block that can be shared"
    if not net.state.flags.c_contiguous:
        return "the state is not contiguous"
    return None


@dataclass(frozen=True, slots=True, eq=False)
class StateVersion:
    """A state as its start and the rows of x that have advanced it since."""

    start: npt.NDArray[Any]  # float32 as the host gave it, or int32, words of the DSP
    rows: tuple[F32, ...] = ()  # of one call each, [N, T, floats]
    count: int = 0  # of their tokens

    def __post_init__(self) -> None:
        """Make the arrays read-only."""
        self.start.flags.writeable = False


class Memory:
    """The state of one net in the memory of a session, and the call that advances it.

    Attributes:
        tokens: The most that one call takes, of each sequence.
    """

    def __init__(self, session_memory: SessionMemory, shape: Shape) -> None:
        block = session_memory.own(shape.state_bytes)
        if block is None:
            raise DeviceFull(
                f"the DSP has no room for {shape.state_bytes} bytes of a delta net's states",
                remedy="use a smaller model, or close other programs that use the DSP",
                call="delta_net",
                code=0,
            )
        weakref.finalize(self, session_memory.free, block)
        self._session_memory, self._block, self._shape = session_memory, block, shape
        words = block.array[: shape.state_bytes].view(np.int32)
        self._words: I32 = words.reshape(-1, shape.words)
        self._widths = shape.row_bytes
        fitting = BATCH_BYTES // (shape.sequences * sum(self._widths))
        self.tokens = max(1, min(fitting, MOST_TOKENS // shape.sequences))
        self._prepare()

    def _prepare(self) -> None:
        shape = self._shape
        self._request = Request(1)
        op = self._op = self._request.ops[0]
        op["kind"] = Kind.DELTA
        op["flags"] = Flag.GROUPED * shape.grouped | Flag.GATES * shape.gates
        op["k"], op["n"], op["format"] = shape.width, shape.heads, shape.k_heads
        op["group"] = shape.sequences
        op["scale"] = np.float32(shape.scale).view(np.uint32)
        op["w"] = self._block.fd, 0, shape.state_bytes, 0
        self._reply = messages.reply()
        self._send = self._session_memory.transport.prepare(self._request.data, self._reply)
        self.forget_scratch()

    def forget_scratch(self) -> None:
        """Drop all views of scratch memory; the next call takes new ones."""
        self._count = 0
        self._blocks: tuple[Block, ...] = ()
        self._x: F32 = np.empty(0, np.float32)
        self._results: F32 = self._x
        self._row: delta.Row | None = None

    def _set_tokens(self, tokens: int) -> None:
        """Take memory for *tokens* rows of each sequence."""
        self.forget_scratch()  # Ctrl-C may come at any line
        sizes = [self._shape.sequences * tokens * width for width in self._widths]
        self._blocks = self._session_memory.scratch.pair(sizes[0], sizes[1], self)
        self._x, y = (
            block.array[:size].view(np.float32).reshape(self._shape.sequences, tokens, -1)
            for block, size in zip(self._blocks, sizes, strict=True)
        )
        for name, block, size, width in zip("xy", self._blocks, sizes, self._widths, strict=True):
            self._op[name] = block.fd, 0, size, width
        self._op["m"] = tokens
        self._row = delta.Row.of(self._x, self._shape)
        self._results = delta.results(y, self._shape)
        self._count = tokens

    def load(self, version: StateVersion) -> None:
        """Make the memory hold *version*.  Errors as `run`."""
        if version.start.dtype == np.float32:
            delta.pack_state(version.start, self._shape, self._words)
        else:
            self._words[...] = version.start
        self._session_memory.transport.sync_for_device(self._block)
        for rows in version.rows:
            self._take_tokens(rows.shape[1])
            self._x[...] = rows
            self._call()

    def run(self, net: DeltaNet) -> F32:
        """Advance the state by *net* and write its results; return its rows ``[N, T, floats]``.

        Raises:
            DeviceLost: The DSP process is gone, or the call or its results did not arrive.
            DeviceTimeout: It did not answer in time.
            NumericsError: There is NaN or infinity.
            DriverError: It refused.
        """
        self._take_tokens(net.v.shape[1])
        assert self._row
        self._row.write(net)
        rows = self._x.copy()
        self._call(net.out)
        return rows

    def _take_tokens(self, tokens: int) -> None:
        """Get ready for *tokens* rows in `_x`."""
        if tokens != self._count:
            self._set_tokens(tokens)

    def _call(self, out: F32 | None = None) -> None:
        self._request.next()
        self._send(*self._blocks)
        last = self._results[-1, -1, -1, -1:].view(np.uint32)
        messages.check(self._request, self._reply, [last])
        if out is not None:
            out[...] = self._results

    def copy(self) -> I32:
        """Return a copy of the state."""
        self._session_memory.transport.sync_for_cpu(self._block)
        return self._words.copy()


class HexagonState(DeltaState):
    """The state of a net on a device.  It survives the loss of its memory there.

    Args:
        on_session: Works with the session's memory, and again if the session is lost over it.
        lock: Of the device.
    """

    def __init__(self, on_session: OnSession, lock: RLock, net: DeltaNet) -> None:
        self._on_session, self._lock = on_session, lock
        self._shape = delta.shape_of(net)
        self._version = StateVersion(net.state.copy())
        self._memory: Memory | None = None
        self._in_memory: StateVersion | None = None  # in the memory; None: unknown

    def advance(self, net: DeltaNet) -> None:
        """See `DeltaState.advance`; errors as `HexagonDevice.delta_net`."""
        self._on_session(partial(self._advance, net))

    def _advance(self, net: DeltaNet, session_memory: SessionMemory) -> None:
        if self._memory is None:
            self._memory = Memory(session_memory, self._shape)
        memory, version, tokens = self._memory, self._version, net.v.shape[1]
        for start in range(0, tokens, memory.tokens):
            part = net if tokens <= memory.tokens else net.after(start).first(memory.tokens)
            self._make_current(memory, version)
            self._in_memory = None
            version = self._in_memory = _after(version, memory.run(part), memory)
        self._version = version

    def _make_current(self, memory: Memory, version: StateVersion) -> None:
        """Load *version* into *memory*, unless it is there."""
        if self._in_memory is not version:
            self._in_memory = None
            memory.load(version)
            self._in_memory = version

    def write(self, values: F32) -> None:
        """See `DeltaState.write`."""
        self._version = StateVersion(values.copy())

    def checkpoint(self) -> StateVersion:
        """See `DeltaState.checkpoint`: a version whose restoring takes a copy and no call."""
        with self._lock:
            if self._version.rows and self._memory and self._in_memory is self._version:
                self._version = self._in_memory = StateVersion(self._memory.copy())
            return self._version

    def restore_checkpoint(self, kept: StateVersion) -> None:
        """See `DeltaState.restore_checkpoint`."""
        self._version = kept

    def to_float32(self, kept: StateVersion, heads: slice = ALL) -> F32:
        """See `DeltaState.to_float32`."""
        shape = self._shape
        if kept.rows:
            return delta.passed(self.to_float32(StateVersion(kept.start)), kept.rows, shape)[
                :, heads
            ]
        if kept.start.dtype == np.float32:
            return kept.start[:, heads]
        words = kept.start.reshape(shape.sequences, shape.heads, -1)[:, heads]
        values = np.empty((*words.shape[:2], shape.width, shape.width), np.float32)
        delta.unpack_state(words.reshape(-1, shape.words), shape, values)
        return values

    integers = True

    def exact(self) -> I32:
        """See `DeltaState.exact`; it takes a call where the memory does not hold the state."""
        if self.checkpoint().rows:
            self._on_session(self._settle)
        shape, start = self._shape, self.checkpoint().start
        words = start
        if start.dtype == np.float32:
            words = np.empty((shape.sequences * shape.heads, shape.words), np.int32)
            delta.pack_state(start, shape, words)
        return delta.exact_state(words.reshape(-1, shape.words), shape)

    def _settle(self, session_memory: SessionMemory) -> None:
        if self._memory is None:
            self._memory = Memory(session_memory, self._shape)
        self._make_current(self._memory, self._version)

    def restore(self, exact: npt.NDArray[Any]) -> None:
        """See `DeltaState.restore`."""
        if exact.dtype == np.float32:
            self.write(exact)
        else:
            self._version = StateVersion(delta.words_of(exact, self._shape))

    def leave(self) -> None:
        """Forget the memory, because its session ends."""
        with contextlib.suppress(NpurtError):  # a worker that is gone: then there are the rows
            self.checkpoint()
        self._memory = self._in_memory = None


def _after(version: StateVersion, rows: F32, memory: Memory) -> StateVersion:
    """Return what *version* is after *rows*, which *memory* has gone through."""
    count = version.count + rows.shape[0] * rows.shape[1]
    if count > MOST_ROWS:
        return StateVersion(memory.copy())
    return StateVersion(version.start, (*version.rows, rows), count)
