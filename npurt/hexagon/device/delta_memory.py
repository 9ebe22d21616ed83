"""The state of a gated delta net in the memory of a session, and the call that advances it.

dsp/kernels/delta.h describes the format of the state.  A repeated call with the same state and the
same rows of tokens gives the same bits.
"""

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.device.delta import I32, DeltaNet
from npurt.device.device import F32, MAX_ROWS
from npurt.errors import DeviceFull
from npurt.hexagon.device.scratch import BATCH_BYTES
from npurt.hexagon.device.session_memory import SessionMemory
from npurt.hexagon.fastrpc.rpcmem import LARGEST, Block
from npurt.hexagon.layout import delta
from npurt.hexagon.layout.delta import DeltaShape
from npurt.hexagon.session import messages
from npurt.hexagon.session.messages import BatchMessage, OpFlag, OpKind

MAX_TOKENS = MAX_ROWS  # tokens of all sequences in one call


def why_not(net: DeltaNet) -> str | None:
    """Return None if the DSP can run *net*, else the first rule that *net* breaks."""
    shape = delta.shape_of(net)
    if shape.width % 16 or not 0 < shape.width <= messages.MAX_WIDTH:
        return f"heads are {shape.width} wide, not a multiple of 16 up to {messages.MAX_WIDTH}"
    if not 0 < shape.heads <= messages.MAX_HEADS or shape.heads % shape.k_heads:
        return f"{shape.heads} heads of v do not share {shape.k_heads} heads of k evenly"
    if net.decay.shape[3] not in (1, shape.width):
        return f"a head has {net.decay.shape[3]} decays, not 1 or {shape.width}"
    if not 0 < shape.sequences <= MAX_TOKENS:
        return f"there are {shape.sequences} sequences, not 1 to {MAX_TOKENS}"
    if shape.sequences * sum(shape.row_bytes) > BATCH_BYTES:
        return f"one token of every sequence takes more than {BATCH_BYTES} bytes"
    if shape.state_bytes > LARGEST:
        return f"the states take more than {LARGEST} bytes, the size of the largest shared block"
    if not net.state.flags.c_contiguous:
        return "the state is not contiguous"
    return None


@dataclass(frozen=True, slots=True, eq=False)
class StateVersion:
    """A state, given by an earlier state and the rows of x that have advanced it since then."""

    start: npt.NDArray[Any]  # the earlier state: float32 from the host, or int32 words of the DSP
    rows: tuple[F32, ...] = ()  # [N, T, floats] for each call
    count: int = 0  # tokens in `rows`, of all sequences

    def __post_init__(self) -> None:
        """Make the arrays read-only."""
        self.start.flags.writeable = False


class DeltaMemory:
    """The state of one net in the memory of a session, and the call that advances it.

    Attributes:
        tokens: The maximum number of tokens per sequence in one call.
    """

    def __init__(self, session_memory: SessionMemory, shape: DeltaShape) -> None:
        block = session_memory.own(shape.state_bytes)
        if block is None:
            raise DeviceFull(
                f"the DSP has no memory for {shape.state_bytes} bytes of a delta net's states",
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
        self.tokens = max(1, min(fitting, MAX_TOKENS // shape.sequences))
        self._prepare()

    def _prepare(self) -> None:
        shape = self._shape
        self._request = BatchMessage(1)
        op = self._op = self._request.ops[0]
        op["kind"] = OpKind.DELTA
        op["flags"] = OpFlag.GROUPED * shape.grouped | OpFlag.GATES * shape.gates
        op["k"], op["n"], op["format"] = shape.width, shape.heads, shape.k_heads
        op["group"] = shape.sequences
        op["scale"] = np.float32(shape.scale).view(np.uint32)
        op["w"] = self._block.fd, 0, shape.state_bytes, 0
        self._reply = messages.reply()
        self._send = self._session_memory.transport.prepare(self._request.data, self._reply)
        self.forget_scratch()

    def forget_scratch(self) -> None:
        """Drop all views of scratch memory; the next call creates new views."""
        self._count = 0
        self._blocks: tuple[Block, ...] = ()
        self._x: F32 = np.empty(0, np.float32)
        self._results: F32 = self._x
        self._row: delta.DeltaRows | None = None

    def _set_tokens(self, tokens: int) -> None:
        """Take scratch memory for *tokens* rows of each sequence."""
        self.forget_scratch()  # first, because Ctrl-C may interrupt any of the next lines
        sizes = [self._shape.sequences * tokens * width for width in self._widths]
        self._blocks = self._session_memory.scratch.pair(sizes[0], sizes[1], self)
        self._x, y = (
            block.array[:size].view(np.float32).reshape(self._shape.sequences, tokens, -1)
            for block, size in zip(self._blocks, sizes, strict=True)
        )
        for name, block, size, width in zip("xy", self._blocks, sizes, self._widths, strict=True):
            self._op[name] = block.fd, 0, size, width
        self._op["m"] = tokens
        self._row = delta.DeltaRows.of(self._x, self._shape)
        self._results = delta.results(y, self._shape)
        self._count = tokens

    def load(self, version: StateVersion) -> None:
        """Write *version* to the memory; errors as `run`."""
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
        """Advance the state by the tokens of *net* and write its `out`.

        Returns:
            The rows of x that the DSP has read, ``[N, T, floats]``.

        Raises:
            DeviceLost: The DSP process is gone, or the call or its results did not arrive.
            DeviceTimeout: The DSP did not answer in time.
            NumericsError: *net* holds NaN or infinity.
            DriverError: The DSP refused the call.
        """
        self._take_tokens(net.v.shape[1])
        assert self._row
        self._row.write(net)
        rows = self._x.copy()
        self._call(net.out)
        return rows

    def _take_tokens(self, tokens: int) -> None:
        """Make `_x` hold *tokens* rows of each sequence."""
        if tokens != self._count:
            self._set_tokens(tokens)

    def _call(self, out: F32 | None = None) -> None:
        self._request.next()
        self._session_memory.calls += 1
        self._send(*self._blocks)
        last = self._results[-1, -1, -1, -1:].view(np.uint32)
        messages.check(self._request, self._reply, [last])
        if out is not None:
            out[...] = self._results

    def copy(self) -> I32:
        """Return a copy of the state."""
        self._session_memory.transport.sync_for_cpu(self._block)
        return self._words.copy()
