"""Run only the output matrix of a model, for draft networks."""

from npurt.cpu.lowering.bound import Bound
from npurt.cpu.lowering.lower import Lowering
from npurt.cpu.lowering.steps import Steps
from npurt.cpu.pool.checked import Weight
from npurt.cpu.pool.engine import empty
from npurt.cpu.pool.table import RowTable
from npurt.device.device import F32
from npurt.graph.tensor import Dim, Kind, Tensor
from npurt.llm.arch import forward
from npurt.llm.file.conventions import Conventions


class Head:
    """The output matrix of a model, or its first rows, applied to a stream that the caller gives.

    Args:
        steps: An empty `Steps`, which the constructor fills.
        op: The name of the product.
        weight: The matrix.
        norm: The weight of the norm before the matrix, ``[D]``.
        eps: The epsilon of the norm.
        conventions: The scale and the cap of logits.
        rows: The maximum number of rows in a call.
    """

    def __init__(
        self,
        steps: Steps,
        op: str,
        weight: Weight,
        norm: F32,
        eps: float,
        conventions: Conventions,
        rows: int,
    ) -> None:
        v, d = Dim("V", weight.packed.n), Dim("D", weight.packed.k)
        matrix = Tensor("output.weight", (v, d), weight.packed.tensor.dtype, Kind.WEIGHT)
        vector = Tensor("norm.weight", (d,), kind=Kind.WEIGHT)
        graph = forward.head(op, matrix, vector, None, eps, conventions)
        self._x, self._logits = empty(rows, weight.packed.k), empty(1, weight.packed.n)
        self._steps = steps
        bound = Bound({matrix.name: weight}, {vector.name: norm}, {}, {}, rows)
        Lowering(steps, graph, bound, {"x": self._x}).add()
        steps.verify(steps.sampler)

    def __call__(self, x: F32) -> F32:
        """Return the logits ``[T, columns]`` of *x* ``[T, D]``; the next call overwrites them."""
        if len(x) > len(self._logits):
            self._logits = empty(len(x), self._logits.shape[1])
        self._x[: len(x)] = x
        logits = self._logits[: len(x)]
        self._steps.redirect(logits)
        self._steps.run(RowTable.of(len(x)))
        return logits
