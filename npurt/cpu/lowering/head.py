"""Run only the output matrix of a model, for draft networks."""

from collections.abc import Mapping

from npurt.cpu.lowering.bound import Bound
from npurt.cpu.lowering.lower import Lowering
from npurt.cpu.lowering.steps import Steps
from npurt.cpu.pool.checked import NamedWeight
from npurt.cpu.pool.engine import empty
from npurt.cpu.pool.table import RowTable
from npurt.device.device import F32
from npurt.graph.graph import Graph
from npurt.graph.weights import products


class Head:
    """The output matrix of a model, or its first rows, applied to a stream that the caller gives.

    The arguments are those of `CpuDevice.head`.
    """

    def __init__(
        self, steps: Steps, graph: Graph, weight: NamedWeight, vectors: Mapping[str, F32], rows: int
    ) -> None:
        (matrix,) = products(graph)
        self._x, self._logits = empty(rows, weight.packed.k), empty(1, weight.packed.n)
        self._steps = steps
        bound = Bound({matrix: weight}, vectors, {}, {}, rows)
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
