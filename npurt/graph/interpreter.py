"""Run a graph in numpy.

In float64, the interpreter is the reference for all devices and architectures.  In float32, it is a
slow device that needs only numpy.  It runs the ops in order, each by its function in `meaning`, and
frees each activation after its last use.
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
    """Runs one graph.

    Args:
        graph: The graph to run; errors are those of `Graph.check`.
        load: Returns the float array of a weight or table by name.
        dtype: The element type of the arithmetic.
        kernels: Functions by type of op that replace those of `meaning`.
        load_rows: Returns the rows of a weight with given indices; by default it indexes the
            result of *load*.
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

    def run(
        self,
        inputs: Mapping[str, Array],
        rows: Rows,
        states: States,
        taps: frozenset[str] = frozenset(),
    ) -> dict[str, Array]:
        """Run all ops on *rows*; return the outputs by name.

        Args:
            inputs: The graph's inputs, such as ``tokens`` ``[T]``, and the tensors in
                ``graph.given``, by name.
            rows: The sequence and position of each row.
            states: The states of the sequences; the run updates them.
            taps: Names of other tensors to return.

        Raises:
            LayoutError: An input is missing, or rows do not continue their sequences.
        """
        needed = {tensor.name for tensor in self.graph.tensors(Kind.INPUT)} | self.graph.given
        missing = sorted(needed - inputs.keys())
        if missing:
            raise LayoutError(
                f"inputs of the graph {self.graph.name} are missing: {', '.join(missing)}",
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
                if self._last_use.get(tensor.name) == index and tensor.name not in taps:
                    del run.values[tensor.name]
        return {name: run.values[name] for name in self._wanted | taps}
