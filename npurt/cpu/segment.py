"""A part of a graph on the CPU: one program, and what the ops without a kernel compute in numpy.

Each sequence has states, buffers of values and a program of its own; all share the weights.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from npurt.cpu.bound import Bound
from npurt.cpu.buffers import row_multiplier_of, unsupported
from npurt.cpu.checked import Weight
from npurt.cpu.engine import empty
from npurt.cpu.lower import Lowering
from npurt.cpu.packed import CpuPacked
from npurt.cpu.rotation import rotations_of, temperatures
from npurt.cpu.states import SequenceStates
from npurt.cpu.steps import Steps
from npurt.device import F32
from npurt.graph import ops
from npurt.graph.graph import WRITTEN, Graph
from npurt.graph.meaning import by_row
from npurt.graph.ops import Fused, Op
from npurt.graph.rows import Rows, Span
from npurt.graph.state import Run, States
from npurt.graph.tensor import SELECTED, Kind, Tensor
from npurt.guard import Guard
from npurt.quant.tensor import QTensor
from npurt.segment import Array, Counter, Limits, Segment, Weights
from npurt.verify import Mode, Sampler

Place = Callable[[Graph, Weights, Mapping[str, F32]], Mapping[str, Weight]]
MakeSteps = Callable[[Sampler, list[str]], Steps]


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight of products: see `npurt.cpu.checked.Weight`."""

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


class Shared:
    """What all sequences of a segment have in common.

    Attributes:
        tensors: What ops read and make, by name.
        weights: Matrices of products by name of the tensor.
        vectors: Other weights by name.
        tables: Weights that rows are taken from, by name.
        rotations: cos and sin by name of the attention.
        sampler: Chooses the products to verify.
        events: Sentences for reports.
    """

    def __init__(
        self, place: Place, make_steps: MakeSteps, part: Graph, weights: Weights, limits: Limits
    ) -> None:
        given = part.given | {tensor.name for tensor in part.tensors(Kind.INPUT)}
        wanted = part.wanted | {tensor.name for tensor in part.tensors(Kind.OUTPUT)}
        self.part = part = replace(part, given=given, wanted=wanted)
        self.given = given
        self.tensors = tensors = {t.name: t for op in part.ops for t in (*op.reads, *op.writes)}
        self.selected = {t.name for t in tensors.values() if t.shape and t.shape[0] == SELECTED}
        self.selects = bool(self.selected)
        self.limits, self.make_steps = limits, make_steps
        self.source = weights
        self.sampler, self.events = Sampler(Mode.OFF), list[str]()
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
        self.rotations = rotations_of(part, weights.values, limits.positions)
        self.temperatures = {
            op.name: temperatures(op.temperature, limits.positions)
            for op in part.ops
            if isinstance(op, ops.Attention)
        }

    def close(self) -> None:
        """Let go of the weights."""
        self.weights.clear()
        self.vectors.clear()
        self.tables.clear()

    def load(self, name: str) -> Array:
        """Return a weight or table as floats, for ops without a kernel."""
        return self.vectors[name] if name in self.vectors else self.source.values(name)


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

    def __init__(self, shared: Shared, current: Current, states: States, op: Op) -> None:
        self._shared, self._current, self._states = shared, current, states
        self._parts = op.parts if isinstance(op, Fused) else (op,)
        self.makes = op.writes
        self._counters = [Counter.of(part) for part in self._parts]
        self.sources: list[tuple[Tensor, F32]] = []
        self.targets: list[tuple[Tensor, F32]] = []

    def run(self, rows: int, position: int, skip_rows: int) -> None:
        """Compute it."""
        current, shared = self._current, self._shared
        flags = current.rows.wanted
        for tensor, view in self.sources:
            current.values[tensor.name] = taken(tensor, view, flags, skip_rows)
        run = Run(np.float32, current.values, shared.load, self._load_rows, current.rows,
                  self._states)  # fmt: skip
        for part, counter in zip(self._parts, self._counters, strict=True):
            start = time.perf_counter()
            with np.errstate(over="ignore", invalid="ignore"):  # as in kernels
                results = by_row(part, run)
            current.values |= {t.name: v for t, v in zip(part.writes, results, strict=True)}
            counter.count(part, len(results[0]), time.perf_counter() - start)
        for tensor, view in self.targets:
            put(tensor, view, current.values[tensor.name], flags, skip_rows)

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
        return self._shared.source.quantised(name)[index].dequantize()


class SequenceProgram:
    """The states of a sequence, and the program that works on them."""

    def __init__(self, shared: Shared) -> None:
        self._shared, self._current = shared, Current()
        part, limits = shared.part, shared.limits
        self.states = SequenceStates(part, limits, shared.rotations, shared.temperatures)
        self._embedded = {
            op.name: (op, empty(limits.rows, op.out.columns))
            for op in part.ops
            if isinstance(op, ops.Embedding)
        }
        bound = Bound(
            shared.weights, shared.vectors, self.states.kv, self.states.recurrent, limits.rows,
            self.states.convolved,
        )  # fmt: skip
        self.steps = shared.make_steps(shared.sampler, shared.events)
        inputs = {op.out.name: buffer for op, buffer in self._embedded.values()}
        lowering = Lowering(self.steps, part, bound, inputs, otherwise=self._in_numpy)
        self._values = lowering.values
        lowering.add()
        tensors = shared.tensors
        for step in self.steps:
            if isinstance(step, NumpyStep):
                step.targets = list(self._in_buffers(step.makes))
        self._output = lowering.output
        self._given = list(self._in_buffers(tensors[name] for name in part.given))
        self._made = [(tensors[n], self._values.view(n)) for n in sorted(part.wanted)]
        if self._output is not None:
            self._output = tensors[self._output.name]

    def _in_buffers(self, tensors: Iterable[Tensor]) -> Iterator[tuple[Tensor, F32]]:
        """Yield those that programs have, and where."""
        for tensor in tensors:
            view = self._values.view(tensor.name)
            if view is not None:
                yield tensor, view

    def _in_numpy(self, op: Op) -> None:
        """Add a step for an op without a kernel.

        Raises:
            UnsupportedOp: It reads what only kernels have.
        """
        step = NumpyStep(self._shared, self._current, self.states.others, op)
        values = self._values
        for tensor in op.reads:
            if tensor.kind in WRITTEN and tensor.name not in values.loose:
                if tensor not in values:
                    raise unsupported(op, f"only kernels have {tensor.name}")
                step.sources.append((tensor, values.columns(tensor).view))
        self.states.leave(op.states)
        self.steps.append(step)

    def run(
        self, values: Mapping[str, Array], rows: Rows, outs: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Run all ops on the rows of this sequence; see `Segment.run_into`."""
        count, flags = len(rows), rows.wanted
        position = int(rows.positions[0])
        skip_rows = 0
        if self._shared.selects and not flags[0]:
            skip_rows = int(np.argmax(flags)) or count  # 0 where none is wanted
        self.states.begin(position, count)
        current = self._current
        current.values, current.rows = dict(values), rows
        for op, buffer in self._embedded.values():
            x = self._shared.tables[op.weight.name][values[op.tokens.name]].dequantize()
            buffer[:count] = x if op.scale == 1 else x * np.float32(op.scale)
        for tensor, view in self._given:
            put(tensor, view, values[tensor.name], flags, skip_rows)
        out = None
        if self._output is not None:
            out = outs.get(self._output.name)
            shape = count - skip_rows, self._output.columns
            if out is None or out.shape != shape or not out.flags.c_contiguous:
                out = np.empty(shape, np.float32)
            self.steps.redirect(out)
        self.steps.run(count, position, skip_rows)
        self.states.end(position + count)
        made = {}
        for tensor, left in self._made:
            if out is not None and tensor is self._output:
                whole = tensor.shape[0] != SELECTED or flags[skip_rows:].all()
                made[tensor.name] = out if whole else out[flags[skip_rows:]]
            elif left is not None:
                made[tensor.name] = taken(tensor, left, flags, skip_rows)
            else:
                made[tensor.name] = current.values[tensor.name]
        current.values = {}
        return made


class CpuSegment(Segment):
    """A part of a graph on the CPU.

    Args:
        place: Lays weights out for kernels.
        make_steps: Makes empty steps; whoever wants other steps for some ops passes his own.

    Raises:
        UnsupportedOp: Neither kernels nor numpy can run an op as it stands there.
    """

    def __init__(
        self, place: Place, make_steps: MakeSteps, part: Graph, weights: Weights, limits: Limits
    ) -> None:
        self.part = part.check()
        self._guard = Guard(part, limits)
        self._shared = Shared(place, make_steps, part, weights, limits)
        self._sequences: dict[int, SequenceProgram] = {}
        first = SequenceProgram(self._shared)
        self.rewinds, self.shifts = first.states.rewinds, first.states.shifts
        self._free = [first]  # the next sequences get these
        self._counted: list[Counter] | None = None  # until it was closed

    def run(self, values: Mapping[str, Array], rows: Rows) -> dict[str, Array]:
        """Run all ops; see `Segment.run`."""
        return self.run_into(values, rows, {})

    def run_into(
        self, values: Mapping[str, Array], rows: Rows, out: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Run all ops; logits of one sequence are written to *out*."""
        parts = self._guard.begin_run(values, rows)
        for part in parts:  # before any of them runs; new sequences begin at 0
            if part.sequence in self._sequences:
                self._sequences[part.sequence].states.require(part.first)
        try:
            made = self._run(parts, values, rows, out)
        except BaseException:
            for part in parts:  # some of several have run, others not: all are lost
                if len(parts) > 1 or not self._guard.has(part.sequence):
                    self.forget(part.sequence)
            raise
        self._guard.end_run(rows)
        return made

    def _run(
        self,
        parts: Sequence[Span],
        values: Mapping[str, Array],
        rows: Rows,
        out: Mapping[str, Array],
    ) -> dict[str, Array]:
        if len(parts) == 1:
            return self._of(parts[0].sequence).run(values, rows, out)
        selected = np.cumsum(rows.wanted) - 1  # row of each wanted one among those
        made: dict[str, Array] = {}
        for sequence, index, *_ in parts:
            own = Rows(rows.sequences[index], rows.positions[index], rows.wanted[index])
            chosen = {True: selected[index[own.wanted]], False: index}
            given = {n: values[n][chosen[n in self._shared.selected]] for n in self._shared.given}
            for name, part in self._of(sequence).run(given, own, {}).items():
                is_selected = name in self._shared.selected
                if name not in made:
                    length = int(rows.wanted.sum()) if is_selected else len(rows)
                    made[name] = np.zeros((length, *part.shape[1:]), part.dtype)
                made[name][chosen[is_selected]] = part
        return made

    def _of(self, sequence: int) -> SequenceProgram:
        if sequence not in self._sequences:
            free = self._free
            self._sequences[sequence] = free.pop() if free else SequenceProgram(self._shared)
        return self._sequences[sequence]

    def _programs(self) -> list[SequenceProgram]:
        return [*self._sequences.values(), *self._free]

    def read(self, state: Tensor, sequence: int) -> Array:
        """Return a copy of a state."""
        self._guard.begin_read(state, sequence)
        return self._of(sequence).states.read(state, sequence)

    def write(self, state: Tensor, sequence: int, values: Array) -> None:
        """Set a state to *values*."""
        self._guard.begin_write(state, sequence, values)
        self._of(sequence).states.write(state, sequence, values)

    def read_exact(self, state: Tensor, sequence: int) -> Array:
        """Return a copy of a state: integers where another device has it so."""
        self._guard.begin_read(state, sequence)
        return self._of(sequence).states.read(state, sequence, exact=True)

    def write_exact(self, state: Tensor, sequence: int, values: Array) -> bool:
        """Set a state to what `read_exact` returned; return False if it was rounded."""
        self._guard.begin_write(state, sequence, values)
        return self._of(sequence).states.write(state, sequence, values)

    def reach(self, sequence: int, length: int) -> int:
        """Return how many positions `rewind` can keep."""
        program = self._sequences.get(sequence)
        return program.states.reach(length) if program and self.rewinds else 0

    def rewind(self, sequence: int, length: int) -> None:
        """Keep the first *length* positions: run the delta nets again over inputs that are kept."""
        program = self._sequences.get(sequence)
        if program is not None:
            program.states.rewind(length, program.steps.replay, self._shared.limits.rows)
            self._guard.rewind(sequence, length)

    def shift(self, sequence: int, keep: int, drop: int) -> None:
        """Forget *drop* positions after the first *keep*, and rotate the later keys back."""
        program = self._sequences.get(sequence)
        if program is not None:
            program.states.shift(keep, drop)
            self._guard.rewind(sequence, program.states.length)

    def forget(self, sequence: int) -> None:
        """Drop all states of a sequence; another one gets its program, whose counters stay."""
        self._guard.forget(sequence)
        program = self._sequences.get(sequence)
        if program is not None:
            program.states.clear(sequence)
            del self._sequences[sequence]
            self._free.append(program)

    def verify(self, sampler: Sampler) -> None:
        """Have products checked that *sampler* chooses."""
        self._shared.sampler = sampler
        for program in self._programs():
            program.steps.verify(sampler)

    def events(self) -> list[str]:
        """Return what reports should say since the last call."""
        found = self._shared.events[:]
        self._shared.events.clear()
        return found

    def counters(self) -> Iterable[Counter]:
        """Return what the ops did so far, for all sequences."""
        if self._counted is not None:
            return self._counted
        total: dict[tuple[int, int], Counter] = {}
        for program in self._programs():
            for place, counter in program.steps.counters().items():
                if place in total:
                    total[place].add(counter)
                else:
                    total[place] = replace(counter)  # a copy: the other goes on counting
        return [total[place] for place in sorted(total)]

    def close(self) -> None:
        """Release weights, programs and states; counters stay."""
        self._guard.closed = True
        self._counted = list(self.counters())
        self._sequences.clear()
        self._free.clear()
        self._shared.close()


def taken(tensor: Tensor, view: F32, flags: Array, skip_rows: int) -> Array:
    """Return a copy of what programs left in the first rows of *view*, in the graph's shape."""
    shape = [dim.size or -1 for dim in tensor.shape[1:]]
    if tensor.shape[0] == SELECTED:
        return view[: len(flags) - skip_rows][flags[skip_rows:]].reshape(-1, *shape)
    return view[: len(flags) * row_multiplier_of(tensor)].copy().reshape(-1, *shape)


def put(tensor: Tensor, view: F32, values: Array, flags: Array, skip_rows: int) -> None:
    """Write *values* where programs read them."""
    values = values.reshape(-1, tensor.columns)
    if tensor.shape[0] == SELECTED:
        view[: len(flags) - skip_rows][flags[skip_rows:]] = values
    else:
        view[: len(values)] = values
