"""A part of a graph lowered for the CPU, with its weights and states.

Between the programs, numpy or another device computes the ops without a kernel.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from npurt.cpu.lowering.bound import Bound
from npurt.cpu.lowering.buffers import unsupported
from npurt.cpu.lowering.constants import Constants, Place
from npurt.cpu.lowering.lower import Lowering
from npurt.cpu.lowering.outside_steps import (
    Current,
    ForeignStep,
    NumpyStep,
    OutsideStep,
    TensorView,
)
from npurt.cpu.lowering.steps import Steps
from npurt.cpu.pool.engine import empty
from npurt.cpu.pool.table import RowTable, TableSpan
from npurt.cpu.pool.vectors import Vectors
from npurt.cpu.state.arrays import KV
from npurt.cpu.state.rotation import rotations_of, temperatures
from npurt.cpu.state.states import Memory
from npurt.device.segment import Array, Limits, RunForeign, Weights
from npurt.device.verify import Mode, Sampler
from npurt.graph import ops
from npurt.graph.graph import WRITTEN, Graph
from npurt.graph.ops import Op
from npurt.graph.rows import Rows
from npurt.graph.tensor import Tensor

MakeSteps = Callable[[Sampler, list[str]], Steps]


class PartProgram:
    """The ops of a part in the order they run; a run has rows of any of its sequences.

    Args:
        place: Packs the weights.
        make_steps: Returns empty steps; a device that runs some ops itself passes a subclass.
        part: The part of the graph.
        weights: The weights of the part.
        limits: The maximum sizes of runs and states.
        events: A list to which sentences for reports are appended.
        foreign: Functions that run the ops `npurt.graph.ops.Foreign`, by name of the op.

    Attributes:
        steps: The steps that run the ops.
        constants: Weights and tables.
        memory: The states of all sequences.

    Raises:
        UnsupportedOp: Neither a kernel nor numpy can run an op of the part.
        SettingError: ``limits.kv_bytes`` is too small for one page.
    """

    def __init__(
        self,
        place: Place,
        make_steps: MakeSteps,
        part: Graph,
        weights: Weights,
        limits: Limits,
        events: list[str],
        foreign: Mapping[str, RunForeign],
    ) -> None:
        self.constants = constants = Constants(place, part, weights)
        self._current, part = Current(), constants.part
        self._foreign = foreign
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
        nothing = np.empty((0, 0), np.float32)  # the caches of encoders, which have no pages
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
        lowering = Lowering(self.steps, part, bound, inputs, otherwise=self._outside)
        self._values = lowering.values
        lowering.add()
        tensors = constants.tensors
        for step in self.steps:
            if isinstance(step, OutsideStep):
                step.targets = list(self._in_buffers(step.makes))
        self._output = lowering.output
        self._columns = self._output.columns if self._output else 0
        self._given = list(self._in_buffers(tensors[name] for name in part.given))
        wanted = sorted(part.wanted - ({self._output.name} if self._output else set()))
        self._left = list(self._in_buffers(tensors[name] for name in wanted))
        self._computed = set(wanted) - {left.name for left in self._left}  # outputs of numpy steps

    def _in_buffers(self, tensors: Iterable[Tensor]) -> Iterator[TensorView]:
        """Yield a view of each of *tensors* that has a buffer."""
        for tensor in tensors:
            view = self._values.view(tensor.name)
            if view is not None:
                yield TensorView.of(tensor, view)

    def _outside(self, op: Op) -> None:
        """Add a step for an op without a kernel.

        Raises:
            UnsupportedOp: The op reads a tensor that exists only inside a kernel.
        """
        step: OutsideStep
        if isinstance(op, ops.Foreign):
            step = ForeignStep(self._current, op, self._foreign[op.name])
        else:
            step = NumpyStep(self.constants, self._current, self.memory.others, op)
        values = self._values
        for tensor in op.reads:
            if tensor.kind in WRITTEN and tensor.name not in values.loose:
                if tensor not in values:
                    raise unsupported(op, f"{tensor.name} exists only inside a kernel")
                step.sources.append(TensorView.of(tensor, values.columns(tensor).view))
        self.memory.leave(op.states)
        self.steps.append(step)

    def run(
        self,
        values: Mapping[str, Array],
        rows: Rows,
        spans: Sequence[TableSpan],
        outs: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Run all ops; see `Segment.run_into`.

        Args:
            values: The given tensors by name.
            rows: The rows, in the order of *spans*.
            spans: The spans that `SequenceStates.begin` returned.
            outs: Buffers for outputs, by name.
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
            shape = len(table.selected), self._columns
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
