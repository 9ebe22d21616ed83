"""A prepared batch: one input times several weights of one session, ready to be sent again.

Everything is made once: the message, views of the memory it names, the call.  A run copies x in,
patches the number of rows when it changed, calls, and copies the results out.  The last result of
each product is NaN before, so it shows when the reply came and the results did not.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from npurt.device import F32
from npurt.hexagon import messages
from npurt.hexagon.messages import Flag, Request
from npurt.hexagon.rpcmem import Block, Slice, aligned
from npurt.hexagon.store import Store

MOST_ROWS = 512  # of a batch: what the CPU device takes at once too


class Weight(NamedTuple):
    """What a batch needs of a weight."""

    part: Slice
    n: int
    k: int
    format: int  # number of the GGUF type


class Batch:
    """``y_i = x @ w_i.T`` for all *weights*, which are in *store* and have the same K.

    Attributes:
        rows: The most rows of x that one run takes.
    """

    def __init__(self, store: Store, weights: Sequence[Weight], group: int) -> None:
        scratch = store.scratch
        widths = [weights[0].k, *(w.n for w in weights)]
        strides = [aligned(4 * width) for width in widths]
        self.rows = max(1, min(scratch.nbytes // sum(strides), MOST_ROWS))
        starts = np.cumsum([0, *(stride * self.rows for stride in strides)])
        self._scratch = scratch
        self._tensors = [
            _matrix(scratch, int(start), stride)[: self.rows, :width]
            for start, stride, width in zip(starts[:-1], strides, widths, strict=True)
        ]
        self._request = Request(len(weights))
        self._ops: Any = self._request.ops
        for i, weight in enumerate(weights):
            op = self._ops[i]
            op["flags"] = Flag.NEW_W | (Flag.SAME_X if i else 0)
            op["k"], op["n"], op["format"], op["group"] = weight.k, weight.n, weight.format, group
            op["x"] = scratch.fd, starts[0], strides[0] * self.rows, strides[0]
            op["w"] = weight.part.block.fd, weight.part.offset, weight.part.nbytes, 0
            op["y"] = scratch.fd, starts[i + 1], strides[i + 1] * self.rows, strides[i + 1]
        self._new = True
        self._reply = messages.reply()
        self._send = store.transport.prepare(self._request.data, self._reply)
        self._set_rows(1)

    def _set_rows(self, rows: int) -> None:
        self._count = rows
        self._ops["m"] = rows
        self._x, *self._ys = (tensor[:rows] for tensor in self._tensors)

    def run(self, x: F32, outs: Sequence[F32]) -> None:
        """Write ``x @ w_i.T`` to *outs*; at most `rows` rows.

        Raises:
            DeviceLost: The DSP process is gone, or the call or its results did not arrive.
            DeviceTimeout: It did not answer in time.
            NumericsError: *x* holds NaN or infinity.
            DriverError: It refused.
        """
        if len(x) != self._count:
            self._set_rows(len(x))
        self._write(x)
        self._request.next()
        self._send()
        messages.check(self._request, self._reply)
        if self._new:
            self._ops["flags"] &= ~np.uint32(Flag.NEW_W)
            self._new = False
        self._read(outs)

    def _write(self, x: F32) -> None:
        self._scratch.begin(write=True)
        self._x[...] = x
        for y in self._ys:
            y[-1, -1] = math.nan
        self._scratch.end(write=True)

    def _read(self, outs: Sequence[F32]) -> None:
        self._scratch.begin(write=False)
        for y, out in zip(self._ys, outs, strict=True):
            out[...] = y
        self._scratch.end(write=False)
        messages.check_results([out.item(-1) for out in outs])


def _matrix(block: Block, start: int, stride: int) -> F32:
    """View *block* from *start* on as rows of *stride* bytes of float32."""
    rows = (block.nbytes - start) // stride
    part = block.array[start : start + rows * stride]
    matrix: F32 = part.view(np.float32).reshape(rows, stride // 4)
    return matrix
