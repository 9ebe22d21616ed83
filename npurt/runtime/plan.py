"""A plan: the ops of one forward pass, each on its device, built once and run once per batch.

Consecutive ops on the host become one program for its thread pool, whose threads pass from op to op
without Python.  A product on another device ends that program, and a new one begins after it.
"""

from collections.abc import Sequence

from npurt.cpu.device import CpuDevice, CpuPacked
from npurt.cpu.engine import Input
from npurt.cpu.program import Heads
from npurt.device import F32
from npurt.runtime.host import HostStep
from npurt.runtime.ledger import Ledger
from npurt.runtime.placement import Placed
from npurt.runtime.remote import RemoteStep
from npurt.runtime.verify import Mode, Sampler


class Plan:
    """Ops in the order they run; buffers as in `npurt.cpu.program.Program`."""

    def __init__(self, cpu: CpuDevice, ledger: Ledger, sampler: Sampler) -> None:
        self._cpu = cpu
        self._ledger = ledger
        self._sampler = sampler
        self._steps: list[HostStep | RemoteStep] = []

    def prepare(self) -> None:
        """Get ready to verify, unless verification is off."""
        if self._sampler.mode is not Mode.OFF:
            for step in self._steps:
                step.prepare()

    def run(self, rows: int, position: int, head: int, out: F32) -> None:
        """Run all ops; the last product writes to *out* ``[rows - head, columns]``."""
        self._steps[-1].redirect_last(out)
        for step in self._steps:
            step.run(rows, position, head)

    def _host(self) -> HostStep:
        if not self._steps or not isinstance(self._steps[-1], HostStep):
            self._steps.append(HostStep(self._cpu, self._ledger, self._sampler))
        step = self._steps[-1]
        assert isinstance(step, HostStep)
        return step

    def norm(
        self,
        x: F32,
        weight: F32,
        eps: float,
        out: Input,
        *,
        add: F32 | None = None,
        from_head: bool = False,
    ) -> None:
        """``x += add; out = x / rms(x) * weight``; *from_head* reads rows from head on."""
        host = self._host()
        host.program.norm(x, weight, eps, out, add=add, from_head=from_head)
        host.label("norm")

    def matmul(
        self, label: str, x: Input, weights: Sequence[Placed], y: F32, *, head: bool = False
    ) -> None:
        """``y = [x @ w.T + bias for each weight]``, side by side."""
        on_host = [isinstance(w.packed, CpuPacked) for w in weights]
        step: HostStep | RemoteStep
        if all(on_host):
            step = self._host()
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
            host.program.quant(out)
            host.label("quantise")

    def silu(self, gate_up: F32, out: Input) -> None:
        """``out = silu(gate) * up`` of the two halves of *gate_up*."""
        host = self._host()
        host.program.silu(gate_up, out)
        host.label("activation")
