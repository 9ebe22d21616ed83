"""A part of a graph as a program of the CPU: its ops lowered, the values of a run, its weights.

What no kernel runs is computed in numpy between the programs.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np

from npurt.cpu.lowering.bound import Bound
from npurt.cpu.lowering.buffers import row_multiplier_of, unsupported
from npurt.cpu.lowering.lower import Lowering
from npurt.cpu.lowering.steps import Steps
from npurt.cpu.pool.checked import Weight
from npurt.cpu.pool.engine import empty
from npurt.cpu.pool.packed import CpuPacked
from npurt.cpu.pool.table import RowTable, Span
from npurt.cpu.pool.vectors import Vectors
from npurt.cpu.state.arrays import KV
from npurt.cpu.state.rotation import rotations_of, temperatures
from npurt.cpu.state.states import Memory
from npurt.device import F32
from npurt.graph import ops
from npurt.graph.graph import WRITTEN, Graph
from npurt.graph.meaning import by_row
from npurt.graph.ops import Fused, Op
from npurt.graph.rows import Rows
from npurt.graph.state import Run, States
from npurt.graph.tensor import SELECTED, Kind, Tensor
from npurt.quant.tensor import QTensor
from npurt.segment import Array, Counter, Limits, Weights
from npurt.verify import Mode, Sampler

Place = Callable[[Graph, Weights, Mapping[str, F32]], Mapping[str, Weight]]
MakeSteps = Callable[[Sampler, list[str]], Steps]


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight of products: see `npurt.cpu.pool.checked.Weight`."""

    name: str
    packed: CpuPacked
    bias: F32 | None


def pack_each(
    pack: Callable[[Sequence[QTensor]], list[CpuPacked]],
    part: Graph,
    weights: Weights,
    vectors: Mapping[str, F32],
) -> dict[str, Weight]:
    """Lay all matrices of *part* out with *pack*; return them by name of the tensor."""
    found = products(part)
    packed = pack([weights.quantised(name) for name in found])
    return {
        name: PackedWeight(
            name.removesuffix(".weight"), image, vectors[op.bias.name] if op.bias else None
        )
        for (name, op), image in zip(found.items(), packed, strict=True)
    }


def products(part: Graph) -> dict[str, ops.MatMul | ops.ExpertMatMul]:
    """Return the first product with each matrix, by name of the matrix.

    Raises:
        UnsupportedOp: Two products with one matrix have different biases.
    """
    found: dict[str, ops.MatMul | ops.ExpertMatMul] = {}
    for op in part.ops:
        if not isinstance(op, ops.MatMul | ops.ExpertMatMul):
            continue
        if found.setdefault(op.weight.name, op).bias != op.bias:
            raise unsupported(op, f"{op.weight.name} has another bias in another product")
    return found


class Constants:
    """What the ops of a part read besides the values of a run.

    Attributes:
        tensors: What ops read and make, by name.
        selected: Names of those with a row for each row that a run selects.
        given: Names of those that a run is given.
        weights: Matrices of products by name of the tensor.
        vectors: Other weights by name.
        tables: Weights that rows are taken from, by name.
    """

    def __init__(self, place: Place, part: Graph, weights: Weights) -> None:
        given = part.given | {tensor.name for tensor in part.tensors(Kind.INPUT)}
        wanted = part.wanted | {tensor.name for tensor in part.tensors(Kind.OUTPUT)}
        self.part = part = replace(part, given=given, wanted=wanted)
        self.given = given
        self.tensors = tensors = {t.name: t for op in part.ops for t in (*op.reads, *op.writes)}
        self.selected = {t.name for t in tensors.values() if t.shape and t.shape[0] == SELECTED}
        self.source = weights
        matrices = products(part)
        self.tables: dict[str, QTensor] = {
            op.weight.name: weights.quantised(op.weight.name)
            for op in part.ops
            if isinstance(op, ops.Embedding)
        }
        self.vectors: dict[str, F32] = {
            tensor.name: np.ascontiguousarray(weights.values(tensor.name), np.float32)
            for tensor in part.tensors(Kind.WEIGHT)
            if tensor.name not in matrices and tensor.name not in self.tables
        }
        self.weights = dict(place(part, weights, self.vectors))

    def load(self, name: str) -> Array:
        """Return a weight or table as floats, for ops without a kernel."""
        return self.vectors[name] if name in self.vectors else self.source.values(name)

    def close(self) -> None:
        """Let go of the weights."""
        self.weights.clear()
        self.vectors.clear()
        self.tables.clear()


class Held(NamedTuple):
    """Where programs have a tensor.

    Attributes:
        view: ``[rows, columns]`` of the most rows.
        selected: It has a row for each row that the run selects.
        row_multiplier: Its rows for each of the run, otherwise.
        row: The shape of a row in the graph.
    """

    name: str
    view: F32
    selected: bool
    row_multiplier: int
    row: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor, view: F32) -> Self:
        """Return it for a tensor of the graph."""
        row = tuple(dim.size or -1 for dim in tensor.shape[1:])
        return cls(tensor.name, view, tensor.shape[0] == SELECTED, row_multiplier_of(tensor), row)

    def take(self, table: RowTable) -> Array:
        """Return a copy of what programs left, in the graph's shape."""
        rows = len(table.selected) if self.selected else table.rows * self.row_multiplier
        return self.view[:rows].copy().reshape(-1, *self.row)

    def put(self, values: Array) -> None:
        """Write *values* where programs read them."""
        values = values.reshape(-1, self.view.shape[1])
        self.view[: len(values)] = values


@dataclass(slots=True)
class Current:
    """The run that is going on, as ops without a kernel see it."""

    values: dict[str, Array] = field(default_factory=dict)
    rows: Rows = field(default_factory=lambda: Rows.of(0))


class NumpyStep:
    """An op that no kernel runs, by its function in `npurt.graph.meaning`, row by row.

    Attributes:
        makes: What it makes.
        sources: Where programs leave what it reads.
        targets: Where programs want what it makes; known once all ops are added.
    """

    def __init__(self, constants: Constants, current: Current, states: States, op: Op) -> None:
        self._constants, self._current, self._states = constants, current, states
        self._parts = op.parts if isinstance(op, Fused) else (op,)
        self.makes = op.writes
        self._counters = [Counter.of(part) for part in self._parts]
        self.sources: list[Held] = []
        self.targets: list[Held] = []

    def run(self, table: RowTable) -> None:
        """Compute it."""
        current = self._current
        for source in self.sources:
            current.values[source.name] = source.take(table)
        run = Run(np.float32, current.values, self._constants.load, self._load_rows, current.rows,
                  self._states)  # fmt: skip
        for part, counter in zip(self._parts, self._counters, strict=True):
            start = time.perf_counter()
            with np.errstate(over="ignore", invalid="ignore"):  # as in kernels
                results = by_row(part, run)
            current.values |= {t.name: v for t, v in zip(part.writes, results, strict=True)}
            counter.count(part, len(results[0]), time.perf_counter() - start)
        for target in self.targets:
            target.put(current.values[target.name])

    def about(self) -> tuple[str, str]:
        """Return what it is and where it runs."""
        return ", ".join(counter.op for counter in self._counters), "cpu"

    def verify(self, sampler: Sampler) -> None:
        """Nothing is verified, and counters say so: what numpy multiplies by was not packed."""

    def redirect_last(self, array: F32) -> None:
        """It has no product."""

    def counters(self) -> Iterable[Counter]:
        """Return what it did so far."""
        return self._counters

    def _load_rows(self, name: str, index: Array) -> Array:
        return self._constants.source.quantised(name)[index].dequantize()


class PartProgram:
    """The ops of a part in the order they run, on rows of any of its sequences.

    Args:
        make_steps: Makes empty steps; whoever wants other steps for some ops passes his own.
        events: Gets sentences for reports.

    Attributes:
        steps: The ops.
        constants: Weights and tables.
        memory: The states of all sequences.

    Raises:
        UnsupportedOp: Neither kernels nor numpy can run an op as it stands there.
        SettingError: *limits* have no room for a page of keys and values.
    """

    def __init__(
        self,
        place: Place,
        make_steps: MakeSteps,
        part: Graph,
        weights: Weights,
        limits: Limits,
        events: list[str],
    ) -> None:
        self.constants = constants = Constants(place, part, weights)
        self._current, part = Current(), constants.part
        attentions = [op for op in part.ops if isinstance(op, ops.Attention)]
        rotations = rotations_of(part, weights.values, limits.positions)
        self.memory = Memory(
            part, limits, rotations,
            {op.name: temperatures(op.temperature, limits.positions) for op in attentions},
        )  # fmt: skip
        self._embedded = [
            (op, Vectors(constants.tables[op.weight.name]), empty(limits.rows, op.out.columns))
            for op in part.ops
            if isinstance(op, ops.Embedding)
        ]
        nothing = np.empty((0, 0), np.float32)  # no pages
        encoders = {
            op.name: KV(nothing, nothing, rotations[op.name])
            for op in part.ops
            if isinstance(op, ops.EncoderAttention)
        }
        bound = Bound(
            constants.weights, constants.vectors, self.memory.kv | encoders, self.memory.recurrent,
            limits.rows, self.memory.convolved,
        )  # fmt: skip
        self.steps = make_steps(Sampler(Mode.OFF), events)
        inputs = {op.out.name: buffer for op, _, buffer in self._embedded}
        lowering = Lowering(self.steps, part, bound, inputs, otherwise=self._in_numpy)
        self._values = lowering.values
        lowering.add()
        tensors = constants.tensors
        for step in self.steps:
            if isinstance(step, NumpyStep):
                step.targets = list(self._in_buffers(step.makes))
        self._output = lowering.output
        self._given = list(self._in_buffers(tensors[name] for name in part.given))
        wanted = sorted(part.wanted - ({self._output.name} if self._output else set()))
        self._left = list(self._in_buffers(tensors[name] for name in wanted))
        self._computed = set(wanted) - {left.name for left in self._left}  # in numpy

    def _in_buffers(self, tensors: Iterable[Tensor]) -> Iterator[Held]:
        """Yield those that programs have, and where."""
        for tensor in tensors:
            view = self._values.view(tensor.name)
            if view is not None:
                yield Held.of(tensor, view)

    def _in_numpy(self, op: Op) -> None:
        """Add a step for an op without a kernel.

        Raises:
            UnsupportedOp: It reads what only kernels have.
        """
        step = NumpyStep(self.constants, self._current, self.memory.others, op)
        values = self._values
        for tensor in op.reads:
            if tensor.kind in WRITTEN and tensor.name not in values.loose:
                if tensor not in values:
                    raise unsupported(op, f"only kernels have {tensor.name}")
                step.sources.append(Held.of(tensor, values.columns(tensor).view))
        self.memory.leave(op.states)
        self.steps.append(step)

    def run(
        self,
        values: Mapping[str, Array],
        rows: Rows,
        spans: Sequence[Span],
        outs: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Run all ops; see `Segment.run_into`.

        Args:
            rows: In the order of *spans*, whose sequences have prepared for the run.
        """
        selects = self.constants.selected and not all(rows.wanted.tolist())
        selected = np.flatnonzero(rows.wanted).astype(np.int32) if selects else None
        table, count = RowTable(spans, selected), len(rows.positions)
        current = self._current
        current.values, current.rows = dict(values), rows
        for op, vectors, buffer in self._embedded:
            x = buffer[:count]
            vectors.take(values[op.tokens.name], x)
            if op.scale != 1:
                x *= np.float32(op.scale)
        for given in self._given:
            given.put(values[given.name])
        made: dict[str, Array] = {}
        if self._output is not None:
            out = outs.get(self._output.name)
            shape = len(table.selected), self._output.columns
            if out is None or out.shape != shape or not out.flags.c_contiguous:
                out = np.empty(shape, np.float32)
            self.steps.redirect(out)
            made[self._output.name] = out
        self.steps.run(table)
        for left in self._left:
            made[left.name] = left.take(table)
        for name in self._computed:
            made[name] = current.values[name]
        current.values = {}
        return made
