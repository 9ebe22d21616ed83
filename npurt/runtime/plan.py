"""A plan: the ops of one forward pass, each on its device, built once and run once per batch.

Consecutive ops on the host become one program for its thread pool, whose threads pass from op to op
without Python.  A product on another device ends that program, and a new one begins after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu.device import CpuDevice, CpuPacked
from npurt.cpu.engine import Input
from npurt.cpu.program import SILU, Convolution, Heads, Routing, Unit
from npurt.device import F32, DeltaNet, Device
from npurt.errors import NotOffloaded
from npurt.runtime.experts import RemoteExperts
from npurt.runtime.host import HostStep
from npurt.runtime.ledger import Ledger
from npurt.runtime.placement import Placed, Stacked
from npurt.runtime.recurrence import RemoteDelta
from npurt.runtime.remote import RemoteStep
from npurt.runtime.slots import Slots
from npurt.runtime.verify import Mode, Sampler


@dataclass(frozen=True, slots=True)
class Call:
    """A function between two ops, called with the number of rows."""

    function: Callable[[int], None]

    def run(self, rows: int, position: int, head: int) -> None:
        """Call it."""
        del position, head
        self.function(rows)

    def about(self) -> tuple[str, str]:
        """Return what it is and where it runs."""
        return "call", "cpu"

    def prepare(self) -> None:
        """There is nothing to verify."""

    def redirect_last(self, array: F32) -> None:
        """It has no product; see `Plan.run`."""
        raise AssertionError("the last step of a plan is no product")


Step = HostStep | RemoteStep | RemoteExperts | RemoteDelta | Call


class Plan:
    """Ops in the order they run; buffers as in `npurt.cpu.program.Program`."""

    def __init__(self, cpu: CpuDevice, ledger: Ledger, sampler: Sampler) -> None:
        self._cpu = cpu
        self._ledger = ledger
        self._sampler = sampler
        self._steps: list[Step] = []
        self._replays: list[HostStep | RemoteDelta] = []  # of the delta nets alone
        self._output = -1  # the step with the product that makes the output

    def prepare(self) -> None:
        """Get ready to verify, unless verification is off."""
        if self._sampler.mode is not Mode.OFF:
            for step in self._steps:
                step.prepare()

    def run(self, rows: int, position: int, head: int, out: F32) -> None:
        """Run all ops; the last product writes to *out* ``[rows - head, columns]``."""
        for step in self._steps[self._output :]:
            step.redirect_last(out)
        self._walk("run", self._steps, rows, position, head)

    def replay(self, rows: int, position: int) -> None:
        """Run the delta nets alone over *rows* tokens that they have kept, from *position* on."""
        self._walk("replay", self._replays, rows, position, 0)

    def _walk(self, name: str, steps: Sequence[Step], rows: int, position: int, head: int) -> None:
        trace = self._ledger.trace
        if trace is None:
            for step in steps:
                step.run(rows, position, head)
            return
        with trace.span(name, "", rows=rows, position=position):
            for step in steps:
                with trace.span(*step.about(), rows=rows):
                    step.run(rows, position, head)

    def _host(self) -> HostStep:
        return self._last_host(self._steps)

    def _last_host(self, steps: "list[Any]") -> HostStep:
        """Return the last of *steps*; a new one when that is not on the host."""
        if not steps or not isinstance(steps[-1], HostStep):
            steps.append(HostStep(self._cpu, self._ledger, self._sampler))
        step: HostStep = steps[-1]
        return step

    def norm(
        self,
        x: F32,
        weight: F32,
        eps: float,
        out: Input,
        *,
        add: F32 | None = None,
        scale: float = 1.0,
        from_head: bool = False,
    ) -> None:
        """``x += scale * add; out = x / rms(x) * weight``; *from_head* reads rows from head on."""
        host = self._host()
        host.program.norm(x, weight, eps, out, add=add, scale=scale, from_head=from_head)
        host.label("norm")

    def sum(self, add: F32, out: Input, *, scale: float = 1.0) -> None:
        """Add *scale* times *add* to the values of *out*."""
        host = self._host()
        host.program.sum(add, out, scale=scale)
        host.label("sum")

    def quantise(self, out: Input) -> None:
        """Fill the codes of *out* from its values."""
        host = self._host()
        host.program.quant(out)
        host.label("quantise")

    def matmul(
        self, label: str, x: Input, weights: Sequence[Placed], y: F32, *, head: bool = False
    ) -> None:
        """``y = [x @ w.T + bias for each weight]``, side by side."""
        on_host = [isinstance(w.packed, CpuPacked) for w in weights]
        if all(on_host):
            self._host().matmul(label, x, weights, y, head)
        else:
            step = RemoteStep(self._cpu, self._ledger, self._sampler)
            self._steps.append(step)
            step.matmul(label, x, weights, y, head)

    def attend(self, heads: Heads, out: Input) -> None:
        """Rotate, append to the cache, attend: ``out[rows, heads * width]``."""
        host = self._host()
        host.program.rope(heads)
        host.label("rope")
        host.program.attend(heads, out.values)
        host.label("attention")
        if out.quantised:
            self.quantise(out)

    def call(self, function: Callable[[int], None]) -> None:
        """Call *function* with the number of rows once the ops so far are done."""
        self._steps.append(Call(function))

    def unit(self, gate_up: F32, out: Input, *, unit: Unit = SILU, fan: int = 1) -> None:
        """``activation(gate) * up`` of the two halves of *gate_up*, *fan* rows for each token."""
        host = self._host()
        host.program.unit(gate_up, out, unit=unit, fan=fan)
        host.label("activation")

    def cap_logits(self, y: F32, *, factor: float = 1.0, cap: float = 0.0) -> None:
        """``y = cap * tanh(factor * y / cap)``, of what the last product wrote; cap 0 is none."""
        if self._output == -1:
            self._output = len(self._steps) - 1
        host = self._host()
        host.cap_logits(y, factor, cap)
        host.label("logits")

    def shortconv(self, x: F32, weight: F32, kept: F32, out: Input) -> None:
        """Convolve between two gates: see `Program.shortconv`."""
        host = self._host()
        host.program.shortconv(x, weight, kept, out)
        host.label("convolution")

    # --- Experts --------------------------------------------------------------------------------

    def route(
        self,
        scores: F32,
        x: Input,
        routing: Routing,
        copies: Input,
        *,
        normed: bool,
        scale: float,
        over_chosen: bool,
    ) -> None:
        """Choose experts by *scores*; copy the rows of *x* to *copies*, expert by expert."""
        host = self._host()
        host.program.route(scores, routing, normed=normed, scale=scale, over_chosen=over_chosen)
        host.program.gather(x, routing, copies)
        host.label("route")

    def experts(
        self, label: str, x: Input, stacks: Sequence[Placed], y: F32, routing: Routing
    ) -> None:
        """Multiply the rows of each expert by its matrix of each stack, side by side in *y*."""
        column = 0
        if all(isinstance(w.packed, CpuPacked) for w in stacks):
            self._host().matmul(label, x, stacks, y, routing=routing)
            return
        for w in stacks:
            if isinstance(w.packed, Stacked):
                step = RemoteExperts(
                    self._cpu, self._ledger, self._sampler, label=label, x=x, each=w.packed.each,
                    y=y, column=column, routing=routing,
                )  # fmt: skip
                self._steps.append(step)
            else:
                self._host().matmul(label, x, [w], y, routing=routing, column=column)
            column += w.packed.n

    def combine(
        self, y: F32, routing: Routing, out: F32, *, shared: F32 | None, gate: F32 | None
    ) -> None:
        """Add up what experts gave for each row, and *shared* times the sigmoid of *gate*."""
        host = self._host()
        host.program.combine(y, routing, out, shared=shared, gate=gate)
        host.label("combine")

    # --- Gated delta nets -----------------------------------------------------------------------

    def delta(
        self,
        conv: Convolution,
        net: DeltaNet,
        slots: Slots,
        control: npt.NDArray[np.int32],
        device: Device,
    ) -> None:
        """Convolve and run *net*, on *device* unless it says why not; see `Program.delta`.

        Raises:
            NotOffloaded: It does, in strict mode.
        """
        reason = device.why_not_delta(net)
        if reason and self._ledger.strict:
            raise NotOffloaded(
                f"{device.caps.name} cannot take delta nets: {reason}",
                remedy="leave strict mode to let the CPU do them",
            )
        there = None
        if not reason and device is not self._cpu:
            accounts = self._cpu, self._ledger, self._sampler
            there = RemoteDelta(device, *accounts, net, slots, control)
        for steps, again in ((self._steps, False), (self._replays, True)):
            host = self._last_host(steps)
            host.program.conv(conv, replay=again)
            host.label("replay" if again else "convolution")
            if there:
                steps.append(there)
            else:
                host.program.delta(net, slots=slots.array, control=control)
                host.label("replay" if again else "delta net", device.caps.name, reason or "")

    def gated_norm(self, x: F32, gate: F32, weight: F32, eps: float, out: Input) -> None:
        """``out = x / rms(x) * weight * silu(gate)``, head by head."""
        host = self._host()
        host.program.gate(x, gate, weight, eps, out)
        host.label("norm")
