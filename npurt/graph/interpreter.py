"""Run a graph in numpy.

In float64 this is the oracle for every device and architecture.  In float32 it is a slow device
that needs nothing but numpy.  It does each op by its function in `meaning`, in order, and frees
each activation after its last use.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError
from npurt.graph.graph import Graph
from npurt.graph.meaning import MEANING, Meaning
from npurt.graph.ops import Op
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
        kernels: Functions by kind of op that replace those of `meaning`.
        load_rows: Returns some rows of a weight; by default those of *load*.
        observe: Called after each op with the op, its number of rows and its seconds.
    """

    def __init__(
        self,
        graph: Graph,
        load: Callable[[str], Array],
        dtype: npt.DTypeLike = np.float64,
        *,
        kernels: Mapping[type[Op], Meaning] | None = None,
        load_rows: Callable[[str, Array], Array] | None = None,
        observe: Callable[[Op, int, float], None] = lambda op, rows, seconds: None,
    ) -> None:
        self.graph = graph.check()
        self._load = load
        self._load_rows = load_rows or (lambda name, index: load(name)[index])
        self._dtype = dtype
        self._observe = observe
        self._kernels = {**MEANING, **(kernels or {})}
        self._wanted = graph.wanted | {tensor.name for tensor in graph.tensors(Kind.OUTPUT)}
        self._last_use = {
            name: index for name, index in graph.last_use().items() if name not in self._wanted
        }

    def run(self, inputs: Mapping[str, Array], rows: Rows, states: States) -> dict[str, Array]:
        """Run all ops on *rows*; return the outputs by name.

        Args:
            inputs: The graph's inputs by name, such as ``tokens`` ``[T]``, and what it is given.
            rows: Sequence and position of each row.
            states: Advanced by the run.

        Raises:
            LayoutError: An input is missing, or rows do not continue their sequences.
        """
        needed = {tensor.name for tensor in self.graph.tensors(Kind.INPUT)} | self.graph.given
        missing = sorted(needed - inputs.keys())
        if missing:
            raise LayoutError(
                f"the graph {self.graph.name} has inputs that are not given: {', '.join(missing)}",
                remedy="pass an array for each of them",
            )
        run = Run(self._dtype, dict(inputs), self._load, self._load_rows, rows, states)
        for index, op in enumerate(self.graph.ops):
            start = time.perf_counter()
            results = self._kernels[type(op)](op, run)
            for tensor, value in zip(op.writes, results, strict=True):
                run.values[tensor.name] = value
            self._observe(op, len(results[0]), time.perf_counter() - start)
            for tensor in (*op.reads, *op.writes):
                if self._last_use.get(tensor.name) == index:
                    del run.values[tensor.name]
        return {name: run.values[name] for name in self._wanted}
