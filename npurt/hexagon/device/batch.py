"""A prepared batch: the products of one input and several weights of a session.

A batch creates its message, its views of shared memory and its call once.  A run copies x to the
memory, makes the call and copies the results from the memory.  If a run has another number of rows
than the run before, the batch takes other memory and writes its address into the message.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from npurt.device.device import F32, MAX_ROWS
from npurt.hexagon.device.scratch import BATCH_BYTES
from npurt.hexagon.device.session_memory import SessionMemory
from npurt.hexagon.fastrpc.rpcmem import Block, Slice, aligned
from npurt.hexagon.session import messages
from npurt.hexagon.session.messages import BatchMessage, OpFlag

RUN_ROWS = MAX_ROWS  # rows of x in one run of a batch


class PlacedWeight(NamedTuple):
    """The address, shape and format of a weight."""

    part: Slice
    n: int
    k: int
    format: int  # number of the GGUF type


class Batch:
    """Computes ``y_i = x @ w_i.T`` for *weights*, which lie in *memory* and have the same K.

    Attributes:
        rows: The maximum number of rows of x in one run.

    Args:
        memory: The memory of the session.
        weights: The weights.
        group: Columns of x that share a scale; 0: the whole row.
    """

    def __init__(self, memory: SessionMemory, weights: Sequence[PlacedWeight], group: int) -> None:
        self._memory = memory
        self._widths = [weights[0].k, *(w.n for w in weights)]
        self._strides = [aligned(4 * width) for width in self._widths]
        self.rows = max(1, min(BATCH_BYTES // sum(self._strides), RUN_ROWS))
        self._request = BatchMessage(len(weights))
        self._ops: Any = self._request.ops
        for i, weight in enumerate(weights):
            op = self._ops[i]
            op["flags"] = OpFlag.NEW_W | (OpFlag.SAME_X if i else 0)
            op["k"], op["n"], op["format"], op["group"] = weight.k, weight.n, weight.format, group
            op["w"] = weight.part.block.fd, weight.part.offset, weight.part.nbytes, 0
        self._new = True  # the DSP has not read these weights
        self._reply = messages.reply()
        self._send = memory.transport.prepare(self._request.data, self._reply)
        self.forget_scratch()

    def forget_scratch(self) -> None:
        """Drop all views of scratch memory; the next run creates new views."""
        self._count = 0
        self._blocks: tuple[Block, ...] = ()
        self._x: F32 = np.empty(0, np.float32)
        self._ys: list[F32] = []
        self._lasts: list[Any] = []

    def _set_rows(self, rows: int) -> None:
        """Take scratch memory for *rows* rows of x and of each result."""
        self.forget_scratch()  # first, because Ctrl-C may interrupt any of the next lines
        sizes = [stride * rows for stride in self._strides]
        x, y = self._memory.scratch.pair(sizes[0], sum(sizes[1:]), self)
        places = [(x, 0), *((y, int(start)) for start in np.cumsum([0, *sizes[1:-1]]))]
        refs = [
            (block.fd, start, size, stride)
            for (block, start), size, stride in zip(places, sizes, self._strides, strict=True)
        ]
        self._x, *self._ys = (
            block.array[start : start + size].view(np.float32).reshape(rows, -1)[:, :width]
            for (block, start), size, width in zip(places, sizes, self._widths, strict=True)
        )
        self._lasts = [y[-1, -1:].view(np.uint32) for y in self._ys]
        self._ops["m"], self._ops["x"] = rows, refs[0]
        for op, ref in zip(self._ops, refs[1:], strict=True):
            op["y"] = ref
        self._blocks = x, y
        self._count = rows

    def run(self, x: F32, outs: Sequence[F32]) -> None:
        """Write ``x @ w_i.T`` to *outs*; *x* has at most `rows` rows.

        Raises:
            DeviceLost: The DSP process is gone, or the call or its results did not arrive.
            DeviceTimeout: The DSP did not answer in time.
            DeviceFull: The DSP has no memory for this number of rows.
            NumericsError: *x* holds NaN or infinity.
            DriverError: The DSP refused the batch.
        """
        if len(x) != self._count:
            self._set_rows(len(x))
        self._x[...] = x
        if self._memory.written:
            self._memory.sync()
        self._request.next()
        self._memory.calls += 1
        self._send(*self._blocks)
        messages.check(self._request, self._reply, self._lasts)
        if self._new:
            self._ops["flags"] &= ~np.uint32(OpFlag.NEW_W)
            self._new = False
        for y, out in zip(self._ys, outs, strict=True):
            out[...] = y
