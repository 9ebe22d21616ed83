"""Run a graph in numpy.

In float64 this is the oracle for every device and architecture.  In float32 it is a slow device
that needs nothing but numpy.  It does each op by its function in `meaning`, in order, and frees
each activation after its last use.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError
from npurt.graph.graph import Graph
from npurt.graph.meaning import MEANING
from npurt.graph.rows import Rows
from npurt.graph.state import Run, States
from npurt.graph.tensor import Kind

Array = npt.NDArray[Any]


class Interpreter:
    """A graph, ready to run.

    Args:
        graph: What to run; it is checked.
        load: Returns the float array of a weight or table by name.
        dtype: Element type of the arithmetic.
    """

    def __init__(
        self, graph: Graph, load: Callable[[str], Array], dtype: npt.DTypeLike = np.float64
    ) -> None:
        self.graph = graph.check()
        self._load = load
        self._dtype = dtype
        self._last_use = graph.last_use()

    def run(self, inputs: Mapping[str, Array], rows: Rows, states: States) -> dict[str, Array]:
        """Run all ops on *rows*; return the outputs by name.

        Args:
            inputs: The graph's inputs by name, such as ``tokens`` ``[T]``.
            rows: Sequence and position of each row.
            states: Advanced by the run.

        Raises:
            LayoutError: An input is missing, or rows do not continue their sequences.
        """
        missing = [t.name for t in self.graph.tensors(Kind.INPUT) if t.name not in inputs]
        if missing:
            raise LayoutError(
                f"the graph {self.graph.name} has inputs that are not given: {', '.join(missing)}",
                remedy="pass an array for each of them",
            )
        run = Run(self._dtype, dict(inputs), self._load, rows, states)
        outputs = {}
        for index, op in enumerate(self.graph.ops):
            results = MEANING[type(op)](op, run)
            for tensor, value in zip(op.writes, results, strict=True):
                run.values[tensor.name] = value
                if tensor.kind is Kind.OUTPUT:
                    outputs[tensor.name] = value
            for tensor in (*op.reads, *op.writes):
                if self._last_use.get(tensor.name) == index:
                    del run.values[tensor.name]
        return outputs
