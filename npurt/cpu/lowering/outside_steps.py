"""Run an op without a kernel between the programs: in numpy, or on another device."""

import abc
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from npurt.cpu.lowering.buffers import row_multiplier_of
from npurt.cpu.lowering.constants import Constants
from npurt.cpu.pool.table import RowTable
from npurt.device.device import F32
from npurt.device.segment import Array, Counter, RunForeign
from npurt.device.verify import Sampler
from npurt.graph.meaning import by_row
from npurt.graph.ops import Foreign, Fused, Op
from npurt.graph.rows import Rows
from npurt.graph.state import Run, States
from npurt.graph.tensor import SELECTED, Tensor


class TensorView(NamedTuple):
    """The place of a tensor in the buffers of the programs.

    Attributes:
        name: The tensor's name.
        view: ``[rows, columns]`` for the maximum number of rows.
        selected: True if the tensor has one row for each row that the run selects.
        row_multiplier: If not *selected*, the tensor's rows per row of the run.
        row: The shape of a row in the graph.
    """

    name: str
    view: F32
    selected: bool
    row_multiplier: int
    row: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor, view: F32) -> Self:
        """Return the view of *tensor*, whose buffer is *view*."""
        row = tuple(dim.size or -1 for dim in tensor.shape[1:])
        return cls(tensor.name, view, tensor.shape[0] == SELECTED, row_multiplier_of(tensor), row)

    def take(self, table: RowTable) -> Array:
        """Return a copy of the tensor's values, in the graph's shape."""
        rows = len(table.selected) if self.selected else table.rows * self.row_multiplier
        return self.view[:rows].copy().reshape(-1, *self.row)

    def put(self, values: Array) -> None:
        """Write *values* to the first rows of the buffer."""
        values = values.reshape(-1, self.view.shape[1])
        self.view[: len(values)] = values


@dataclass(slots=True)
class Current:
    """The values and rows of the current run, for ops without a kernel."""

    values: dict[str, Array] = field(default_factory=dict)
    rows: Rows = field(default_factory=lambda: Rows.of(0))


class OutsideStep(abc.ABC):
    """A step that computes an op without a kernel, from copies of the values in buffers.

    Attributes:
        makes: The tensors that the op writes.
        sources: Views of the tensors that the op reads from buffers of programs.
        targets: Views of the buffers that the op's results are written to; set after all ops are
            added.
    """

    def __init__(self, current: Current, op: Op) -> None:
        self.makes = op.writes
        self.sources: list[TensorView] = []
        self.targets: list[TensorView] = []
        self._current = current

    def run(self, table: RowTable) -> None:
        """Compute the op."""
        current = self._current
        for source in self.sources:
            current.values[source.name] = source.take(table)
        self.compute(current)
        for target in self.targets:
            target.put(current.values[target.name])

    @abc.abstractmethod
    def compute(self, current: Current) -> None:
        """Add the op's results to the values."""

    def verify(self, sampler: Sampler) -> None:  # noqa: B027
        """Do nothing: the step has no packed weight."""

    def redirect_last(self, array: F32) -> None:  # noqa: B027
        """Do nothing: the step does not write the output that `Steps.redirect` moves."""

    @abc.abstractmethod
    def about(self) -> tuple[str, str]:
        """Return the labels of the ops, separated by commas, and the name of the device."""

    def counters(self) -> Iterable[Counter]:
        """Return the counters of the ops; by default none."""
        return ()


class ForeignStep(OutsideStep):
    """A step that calls a part of the graph on another device."""

    def __init__(self, current: Current, op: Foreign, function: RunForeign) -> None:
        super().__init__(current, op)
        self._name, self._inputs, self._function = op.name, op.inputs, function

    def compute(self, current: Current) -> None:
        """Call the function with the inputs, and keep the outputs."""
        given = {tensor.name: current.values[tensor.name] for tensor in self._inputs}
        made = self._function(given, current.rows)
        current.values |= {tensor.name: made[tensor.name] for tensor in self.makes}

    def about(self) -> tuple[str, str]:
        """Return the name of the part; its own event in a trace names its device."""
        return self._name, ""


class NumpyStep(OutsideStep):
    """A step that runs an op by its function in `npurt.graph.meaning`, row by row."""

    def __init__(self, constants: Constants, current: Current, states: States, op: Op) -> None:
        super().__init__(current, op)
        self._constants, self._states = constants, states
        self._parts = op.parts if isinstance(op, Fused) else (op,)
        self._counters = [Counter.of(part) for part in self._parts]

    def compute(self, current: Current) -> None:
        """Compute the op with numpy."""
        run = Run(np.float32, current.values, self._constants.load, self._load_rows, current.rows,
                  self._states)  # fmt: skip
        for part, counter in zip(self._parts, self._counters, strict=True):
            start = time.perf_counter()
            with np.errstate(over="ignore", invalid="ignore"):  # kernels do not warn either
                results = by_row(part, run)
            current.values |= {t.name: v for t, v in zip(part.writes, results, strict=True)}
            counter.count(part, len(results[0]), time.perf_counter() - start)

    def about(self) -> tuple[str, str]:
        """Return the labels of the ops, separated by commas, and the name of the device."""
        return ", ".join(counter.op for counter in self._counters), "cpu"

    def counters(self) -> Iterable[Counter]:
        """Return the counters of the ops."""
        return self._counters

    def _load_rows(self, name: str, index: Array) -> Array:
        return self._constants.source.quantised(name)[index].dequantize()
