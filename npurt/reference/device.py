"""The device ``numpy``: runs products with `numpy.matmul` on float32 weights, and whole graphs."""

import math
from collections.abc import Mapping

import numpy as np

from npurt.device.device import F32, F64, FLUSHED, UNIT, Caps, Device, MatMul, Packed, check_product
from npurt.device.segment import NO_FOREIGN, Array, Limits, RunForeign, Segment, Weights
from npurt.errors import NpurtError
from npurt.graph import meaning
from npurt.graph.graph import Graph
from npurt.graph.meaning import MEANING
from npurt.graph.ops import Foreign, Op
from npurt.graph.state import Run
from npurt.quant.tensor import QTensor
from npurt.reference.segment import ReferenceSegment


class ReferencePacked(Packed):
    """A weight converted to float32."""

    def __init__(self, device: "ReferenceDevice", tensor: QTensor) -> None:
        self.device = device
        self.tensor = tensor
        self.values = tensor.dequantize()

    @property
    def nbytes(self) -> int:
        """The bytes of the float32 weight."""
        return self.values.nbytes

    def multiplied(self, rows: slice) -> F64:
        """Return *rows* of the float32 weight, as float64."""
        return self.values[rows].astype(np.float64)

    def error(self, rows: slice) -> F64:
        """Return the standard error of results from K products and K sums in float32."""
        norms = np.sqrt((self.multiplied(rows) ** 2).sum(axis=1))
        bound: F64 = UNIT * math.sqrt(2 * self.k) * norms + FLUSHED * 4 * math.sqrt(self.k)
        return bound

    def floor(self, rows: slice) -> F64:
        """Return a bound of the error from products and sums below 2^-126, which may become 0."""
        norms = np.sqrt((self.multiplied(rows) ** 2).sum(axis=1))
        lost: F64 = FLUSHED * (2 * self.k + math.sqrt(self.k) * norms)
        return lost

    def peak(self, rows: slice, x: F64) -> F64:
        """Return ``|x| @ |w[rows]|.T``, the sums of the absolute values of the terms."""
        peak: F64 = abs(x) @ abs(self.multiplied(rows)).T
        return peak


class ReferenceDevice(Device):
    """The numpy device.

    Args:
        by_row: Compute graphs row by row, so that a row's result does not depend on the number of
            rows in the run.  This is slower, because a product reads its weight for each row.
    """

    def __init__(self, *, by_row: bool = False) -> None:
        self._kernels = dict.fromkeys(MEANING, meaning.by_row) if by_row else {}
        self.caps = Caps("numpy", f"numpy {np.__version__}, float32, no compiled code", False)
        self._closed = False

    def _require_open(self) -> None:
        if self._closed:
            raise NpurtError("the numpy device is closed", remedy="open it again")

    def why_not(self, op: MatMul) -> str | None:
        """Return None: the device supports all products."""
        del op
        return None

    def pack(self, tensor: QTensor, *, int16: bool | None = False) -> ReferencePacked:
        """Convert *tensor* to float32; *int16* has no effect, as activations are not rounded."""
        del int16
        self._require_open()
        return ReferencePacked(self, tensor)

    def matmul(self, x: F32, w: Packed, out: F32) -> None:
        """Write ``x @ w.T`` to *out*."""
        self._require_open()
        check_product(self, x, [w], [out])
        assert isinstance(w, ReferencePacked)
        with np.errstate(over="ignore", invalid="ignore"):
            np.matmul(x, w.values.T, out=out)

    def multiplied(self, x: F32, w: Packed) -> F64:
        """Return *x* as float64: the device does not round activations."""
        del w
        return x.astype(np.float64)

    def why_not_op(self, op: Op, limits: Limits) -> str | None:
        """Return None: the device supports all ops."""
        del op, limits
        return None

    def compile(
        self,
        part: Graph,
        weights: Weights,
        limits: Limits,
        foreign: Mapping[str, RunForeign] = NO_FOREIGN,
    ) -> Segment:
        """Return a segment that runs *part*; *foreign* as in `npurt.device.segment.Host`."""
        self._require_open()

        def call(op: Foreign, run: Run) -> tuple[Array, ...]:
            made = foreign[op.name]({t.name: run.values[t.name] for t in op.inputs}, run.rows)
            return tuple(made[tensor.name] for tensor in op.outs)

        return ReferenceSegment(part, weights, limits, {**self._kernels, Foreign: call})

    def close(self) -> None:
        """Close the device; later calls raise NpurtError."""
        self._closed = True
