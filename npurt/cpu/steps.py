"""What a graph becomes: programs for the thread pool, and functions between them.

Consecutive ops are one program, whose threads pass from op to op without Python.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from npurt.cpu.bound import Recurrence
from npurt.cpu.checked import CheckedProgram, Weight
from npurt.cpu.engine import Input
from npurt.cpu.program import Convolution, Program, Routing
from npurt.device import F32, DeltaNet


class Step(Protocol):
    """Consecutive ops, or a function between ops."""

    def run(self, rows: int, position: int, skip_rows: int) -> None:
        """Run it on *rows* rows from *position* on; ops of logits skip the first *skip_rows*."""

    def about(self) -> tuple[str, str]:
        """Return what it is and where it runs."""

    def prepare(self) -> None:
        """Get ready to verify."""

    def redirect_last(self, array: F32) -> None:
        """Let the last product, and what follows it, write to *array* from now on."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function between two ops, called with the number of rows, the position and rows to skip."""

    function: Callable[[int, int, int], None]

    def run(self, rows: int, position: int, skip_rows: int) -> None:
        """Call it."""
        self.function(rows, position, skip_rows)

    def about(self) -> tuple[str, str]:
        """Return what it is and where it runs."""
        return "call", "cpu"

    def prepare(self) -> None:
        """There is nothing to verify."""

    def redirect_last(self, array: F32) -> None:
        """It has no product."""


class Steps(abc.ABC):
    """Steps in the order they run; `npurt.cpu.lower` adds them, and whoever owns them runs them."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._output = -1  # the step with the product that makes the output

    @abc.abstractmethod
    def new_program(self) -> CheckedProgram:
        """Return an empty program."""

    def host(self) -> CheckedProgram:
        """Return the program that is the last step; a new one when that is something else."""
        return self._last_program(self._steps)

    def _last_program(self, steps: list[Step]) -> CheckedProgram:
        last = steps[-1] if steps else None
        if isinstance(last, CheckedProgram):
            return last
        steps.append(self.new_program())
        return self._last_program(steps)

    def call(self, function: Callable[[int, int, int], None]) -> None:
        """Call *function* with rows, position and rows to skip once the ops so far are done."""
        self._steps.append(Call(function))

    def cap_logits(self, y: F32, *, factor: float = 1.0, cap: float = 0.0) -> None:
        """``y = cap * tanh(factor * y / cap)``, of what the last product wrote; cap 0 is none."""
        if self._output == -1:
            self._output = len(self._steps) - 1
        self.host().cap_logits(y, factor, cap)

    def matmul(
        self,
        label: str,
        x: Input,
        weights: Sequence[Weight],
        y: F32,
        *,
        skips_rows: bool = False,
        column: int = 0,
    ) -> None:
        """``y = [x @ w.T + bias for each weight]``, side by side from *column* on."""
        self.host().matmul(label, x, weights, y, skips_rows, column=column)

    def experts(
        self,
        label: str,
        x: Input,
        stacks: Sequence[Weight],
        y: F32,
        routing: Routing,
        *,
        column: int = 0,
    ) -> None:
        """Multiply the rows of each expert by its matrix of each stack, side by side in *y*."""
        self.host().matmul(label, x, stacks, y, routing=routing, column=column)

    def delta(self, conv: Convolution, net: DeltaNet, held: Recurrence) -> None:
        """Convolve and run *net*; see `Program.delta`."""
        host = self.host()
        host.add("convolution", Program.conv, conv)
        host.add("delta net", Program.delta, net, slots=held.slots.array, control=held.control)

    def redirect(self, out: F32) -> None:
        """Let the product that makes the output, and what follows it, work in *out*."""
        for step in self._steps[self._output :]:
            step.redirect_last(out)
