"""Plan the ops of a forward pass, each on its device; a plan is built once and run for each batch.

Consecutive ops on the host become one program, which the CPU's thread pool runs without returning
to Python.  A product on another device ends the program, and the next op on the host starts
another.
"""

import weakref
from collections.abc import Iterator, Sequence

from npurt.cpu.device import CpuDevice
from npurt.cpu.lowering.steps import CountingStep, Step, Steps
from npurt.cpu.pool.checked import NamedWeight
from npurt.cpu.pool.engine import Input
from npurt.cpu.pool.operands import Convolution, Routing
from npurt.cpu.pool.packed import CpuPacked
from npurt.cpu.pool.program import Program
from npurt.cpu.pool.table import RowTable
from npurt.cpu.state.arrays import Recurrence
from npurt.device.delta import DeltaNet, why_not_delta
from npurt.device.device import F32, Device
from npurt.device.segment import Counter
from npurt.device.verify import Sampler
from npurt.errors import NotOffloaded
from npurt.runtime.execute.experts import RemoteExperts
from npurt.runtime.execute.host import HostStep
from npurt.runtime.execute.placement import Placed, Stacked
from npurt.runtime.execute.recurrence import RemoteDelta
from npurt.runtime.execute.remote import RemoteProducts, RemoteStep
from npurt.runtime.report.ledger import Ledger, Row, row_of
from npurt.runtime.report.trace import Trace


class Plan(Steps):
    """The ops of a forward pass in order; buffers as in `npurt.cpu.pool.program.Program`.

    The ledger reads the counts of the steps, so `counters` returns nothing.

    Args:
        device: Runs the delta nets that it supports; by default the CPU runs them.
    """

    def __init__(
        self, cpu: CpuDevice, ledger: Ledger, sampler: Sampler, device: Device | None = None
    ) -> None:
        super().__init__(cpu.engine, sampler, ledger.notes)
        self._cpu = cpu
        self._ledger = ledger
        self._device = device or cpu
        self._remote_delta: RemoteDelta | None = None  # step of the net that `delta` adds
        self._host_reason = ""  # why the CPU runs that net

    def new_program(self) -> HostStep:
        """Return an empty program, whose counts the ledger reads."""
        return HostStep(self._cpu, self._ledger, self.sampler)

    def append(self, step: CountingStep) -> None:
        """Add a step without a kernel; the ledger reads its counts."""
        super().append(step)
        weak_step = weakref.ref(step)  # avoids a cycle: the step may refer to the ledger

        def rows() -> Iterator[Row]:
            alive = weak_step()
            return (row_of(c, "cpu", "cpu", "") for c in (alive.counters() if alive else ()))

        self._ledger.follow(rows)

    def counters(self) -> dict[tuple[int, int], Counter]:
        """Return no counters: the ledger has the counts."""
        return {}

    def run(self, table: RowTable) -> None:
        """Run all steps, and record them in the ledger's trace."""
        if self._ledger.trace is None:
            for step in self._steps:
                step.run(table)
        else:
            self._traced(self._ledger.trace, "run", self._steps, table)

    def replay(self, table: RowTable) -> None:
        """Run only the delta nets, on the stored inputs of the rows of *table*."""
        if self._ledger.trace is None:
            for step in self._replays:
                step.run(table)
        else:
            self._traced(self._ledger.trace, "replay", self._replays, table)

    def _traced(self, trace: Trace, name: str, steps: Sequence[Step], table: RowTable) -> None:
        rows = table.rows
        first = table.spans[0]
        with trace.span(name, "", rows=rows, position=first.position, sequences=len(table.spans)):
            for step in steps:
                with trace.span(*step.about(), rows=rows):
                    step.run(table)

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
        """Add ``y = [x @ w.T + bias for each weight]``, side by side from *column* on."""
        if all(isinstance(w.packed, CpuPacked) for w in weights):
            super().matmul(label, x, weights, y, selects=selects, column=column)
            return
        products = RemoteProducts(
            self._cpu, self._ledger, self.sampler, label,
            [w for w in weights if isinstance(w, Placed)], shortlists=selects,
        )  # fmt: skip
        self._steps.append(RemoteStep(products, x, y[:, column:], selects=selects))

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
        """Add products of each expert's rows with its matrix of each stack, side by side in *y*."""
        if all(isinstance(w.packed, CpuPacked) for w in stacks):
            super().experts(label, x, stacks, y, routing, column=column)
            return
        for w in stacks:
            if isinstance(w.packed, Stacked):
                step = RemoteExperts(
                    self._cpu, self._ledger, self.sampler, label=label, x=x, each=w.packed.each,
                    y=y, column=column, routing=routing,
                )  # fmt: skip
                self._steps.append(step)
            else:
                self.host().matmul(label, x, [w], y, routing=routing, column=column)
            column += w.packed.n

    def delta(self, conv: Convolution, net: DeltaNet, held: Recurrence) -> None:
        """Add a convolution and *net*, which runs on the device if supported; see `Program.delta`.

        Raises:
            NotOffloaded: In strict mode, the device refuses the net.
        """
        device = self._device
        reason = why_not_delta(device, net)
        if reason and self._ledger.strict:
            raise NotOffloaded(
                f"{device.caps.name} cannot run delta nets: {reason}",
                remedy="turn strict mode off to run them on the CPU",
            )
        self._remote_delta, self._host_reason = None, reason or ""
        if not reason and device is not self._cpu:
            accounts = self._cpu, self._ledger, self.sampler
            self._remote_delta = RemoteDelta(device, *accounts, net, held)
        super().delta(conv, net, held)

    def _net(self, steps: list[Step], net: DeltaNet, held: Recurrence, label: str) -> None:
        if self._remote_delta:
            steps.append(self._remote_delta)
            return
        host = self._last_program(steps)
        assert isinstance(host, HostStep)
        op = host.add(label, Program.delta, net, slots=held.array, control=held.control)
        host.planned[op] = self._device.caps.name, self._host_reason
