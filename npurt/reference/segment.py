"""Run a part of a graph with the interpreter, in float32."""

from collections.abc import Iterable, Mapping

import numpy as np

from npurt.device.guard import Guard
from npurt.device.segment import Array, Counter, Limits, Segment, Weights
from npurt.graph.graph import Graph
from npurt.graph.interpreter import Interpreter
from npurt.graph.meaning import Meaning
from npurt.graph.ops import Foreign, Op
from npurt.graph.rows import Rows
from npurt.graph.state import States
from npurt.graph.tensor import POSITIONS, Kind, Tensor

CACHED_BYTES = 4 << 30  # maximum bytes of cached float32 weights; others are converted in each run


class ReferenceSegment(Segment):
    """A segment that runs its part op by op; states are numpy arrays.

    Args:
        part: The part of the graph.
        weights: The weights of the part.
        limits: The maximum sizes of runs and states.
        kernels: Functions by type of op that replace those of `npurt.graph.meaning`.

    Raises:
        GraphError: The part is not a valid graph.
    """

    def __init__(
        self,
        part: Graph,
        weights: Weights,
        limits: Limits,
        kernels: Mapping[type[Op], Meaning] | None = None,
    ) -> None:
        self.part = part
        self._guard = Guard(part, limits)
        self._floats = _Floats(weights)
        kv = {t.name: limits.kv_dtype for t in part.tensors(Kind.STATE) if POSITIONS in t.shape}
        self._states = States(part, dtypes=kv)
        counters = self._counters = {
            op.name: Counter.of(op) for op in part.ops if not isinstance(op, Foreign)
        }

        def count(op: Op, rows: int, seconds: float) -> None:
            if not isinstance(op, Foreign):  # another segment counts it
                counters[op.name].count(op, rows, seconds)

        self._interpreter = Interpreter(  # gets no bound methods of self, to avoid a cycle
            part,
            self._floats.load,
            np.float32,
            kernels=kernels,
            load_rows=self._floats.load_rows,
            observe=count,
        )

    def run(self, values: Mapping[str, Array], rows: Rows) -> dict[str, Array]:
        """Run all ops; see `Segment.run`."""
        self._guard.begin_run(values, rows)
        with np.errstate(over="ignore", invalid="ignore"):  # kernels do not warn either
            made = self._interpreter.run(values, rows, self._states, self.taps)
        self._guard.end_run(rows)
        return made

    def read(self, state: Tensor, sequence: int) -> Array:
        """Return a copy of a state."""
        self._guard.begin_read(state, sequence)
        return self._states.of(sequence)[state.name].copy()

    def write(self, state: Tensor, sequence: int, values: Array) -> None:
        """Set a state to *values*."""
        self._guard.begin_write(state, sequence, values)
        held = self._states.of(sequence)
        held[state.name] = values.astype(held[state.name].dtype)

    def forget(self, sequence: int) -> None:
        """Drop all states of a sequence."""
        self._guard.forget(sequence)
        self._states.forget(sequence)

    def counters(self) -> Iterable[Counter]:
        """Return the counters of all ops."""
        return self._counters.values()

    def close(self) -> None:
        """Release the weights, but keep the counters."""
        self._guard.closed = True
        self._floats.cache.clear()


class _Floats:
    """Weights and tables as floats, cached up to CACHED_BYTES."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.cache: dict[str, Array] = {}
        self._nbytes = 0

    def load(self, name: str) -> Array:
        """Return all values of a weight or table; those of a float64 table stay float64."""
        found = self.cache.get(name)
        if found is None:
            found = self._weights.values(name)
            found = found if found.dtype == np.float64 else found.astype(np.float32, copy=False)
            if self._nbytes + found.nbytes <= CACHED_BYTES:
                self.cache[name] = found
                self._nbytes += found.nbytes
        return found

    def load_rows(self, name: str, index: Array) -> Array:
        """Return the rows *index* of a weight as float32, without caching them."""
        return self._weights.quantised(name)[index].dequantize()
