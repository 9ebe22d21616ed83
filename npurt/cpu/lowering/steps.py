"""The steps of a lowered graph: programs for the thread pool, and other steps between them.

Consecutive ops with kernels are one program, which the threads run without calling Python.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from npurt.cpu.pool.checked import CheckedProgram, NamedWeight
from npurt.cpu.pool.engine import CpuThreadPool, Input
from npurt.cpu.pool.operands import Convolution, Routing
from npurt.cpu.pool.program import Program
from npurt.cpu.pool.table import RowTable
from npurt.cpu.state.arrays import Recurrence
from npurt.device.delta import DeltaNet
from npurt.device.device import F32
from npurt.device.segment import Counter
from npurt.device.verify import Sampler


class Step(Protocol):
    """A program of consecutive ops, or one op that runs outside programs."""

    def run(self, table: RowTable) -> None:
        """Run the step on the rows of *table*; ops on logits run on its selected rows."""

    def about(self) -> tuple[str, str]:
        """Return the labels of the ops, separated by commas, and the name of the device."""

    def verify(self, sampler: Sampler) -> None:
        """Verify the results that *sampler* chooses, from now on."""

    def redirect_last(self, array: F32) -> None:
        """Make *array* the buffer of the last product and of the caps of its results."""


@runtime_checkable
class CountingStep(Step, Protocol):
    """A step that counts the work of its ops."""

    def counters(self) -> Iterable[Counter]:
        """Return the counters of all ops of the step."""


class Steps:
    """Steps in the order they run; `npurt.cpu.lowering.lower` adds them.

    Attributes:
        sampler: Chooses the products to verify.
    """

    def __init__(self, engine: CpuThreadPool, sampler: Sampler, events: list[str]) -> None:
        self.sampler = sampler
        self._engine, self._events = engine, events
        self._steps: list[Step] = []
        self._replays: list[Step] = []  # steps of `replay`
        self._output = -1  # index of the step with the product that computes the output
        self._out: F32 | None = None  # the buffer of the output

    def __iter__(self) -> Iterator[Step]:
        return iter((*self._steps, *self._replays))

    def new_program(self) -> CheckedProgram:
        """Return an empty program."""
        return CheckedProgram(self._engine, self.sampler, self._events)

    def host(self) -> CheckedProgram:
        """Return the last step if it is a program; else append and return an empty program."""
        return self._last_program(self._steps)

    def _last_program(self, steps: list[Step]) -> CheckedProgram:
        last = steps[-1] if steps else None
        if isinstance(last, CheckedProgram):
            return last
        steps.append(self.new_program())
        return self._last_program(steps)

    # --- Running --------------------------------------------------------------------------------

    def run(self, table: RowTable) -> None:
        """Run all steps on the rows of *table*; ops on logits run on its selected rows."""
        for step in self._steps:
            step.run(table)

    def replay(self, table: RowTable) -> None:
        """Run only the delta nets and their convolutions, over stored inputs of *table*'s rows."""
        for step in self._replays:
            step.run(table)

    def redirect(self, out: F32) -> None:
        """Make *out* the buffer of the product that computes the output, and of its caps."""
        if out is not self._out:
            for step in self._steps[self._output :]:
                step.redirect_last(out)
        self._out = out

    def verify(self, sampler: Sampler) -> None:
        """Verify the results that *sampler* chooses, from now on."""
        self.sampler = sampler
        for step in self:
            step.verify(sampler)

    def counters(self) -> dict[tuple[int, int], Counter]:
        """Return counters by (step, op); programs that never ran have none."""
        return {
            (i, j): counter
            for i, step in enumerate(self)
            if isinstance(step, CountingStep)
            for j, counter in enumerate(step.counters())
        }

    # --- Adding ---------------------------------------------------------------------------------

    def append(self, step: CountingStep) -> None:
        """Append *step*."""
        self._steps.append(step)

    def cap_logits(self, y: F32, *, factor: float = 1.0, cap: float = 0.0) -> None:
        """Add ``y = cap * tanh(factor * y / cap)``, or ``y = factor * y`` if *cap* is 0.

        *y* has the results of the last product.
        """
        if self._output == -1:
            self._output = len(self._steps) - 1
        self.host().cap_logits(y, factor, cap)

    def matmul(
        self,
        label: str,
        x: Input,
        weights: Sequence[NamedWeight],
        y: F32,
        *,
        selects: bool = False,
        column: int = 0,
    ) -> None:
        """Add ``x @ w.T + bias`` for each weight; results are side by side in *y* from *column*."""
        self.host().matmul(label, x, weights, y, selects, column=column)

    def experts(
        self,
        label: str,
        x: Input,
        stacks: Sequence[NamedWeight],
        y: F32,
        routing: Routing,
        *,
        column: int = 0,
    ) -> None:
        """Add the products of each expert's rows with its matrix in each stack.

        The results of the stacks are side by side in *y* from *column* on.
        """
        self.host().matmul(label, x, stacks, y, routing=routing, column=column)

    def delta(self, conv: Convolution, net: DeltaNet, held: Recurrence) -> None:
        """Add *net* and the convolution before it, both to `run` and to `replay`."""
        for steps, again in ((self._steps, False), (self._replays, True)):
            host = self._last_program(steps)
            host.add("replay" if again else "convolution", Program.conv, conv, replay=again)
            self._net(steps, net, held, "replay" if again else "delta net")

    def _net(self, steps: list[Step], net: DeltaNet, held: Recurrence, label: str) -> None:
        """Add the op of *net* to *steps*."""
        self._last_program(steps).add(
            label, Program.delta, net, slots=held.array, control=held.control
        )
