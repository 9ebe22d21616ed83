"""Run a gated delta net on an NPU, verify its results, and record the calls in the ledger."""

import functools
import random
import time
from collections.abc import Callable
from typing import Any

from npurt.cpu.device import CpuDevice
from npurt.cpu.pool.table import RowTable
from npurt.cpu.state.arrays import Recurrence
from npurt.cpu.state.slots import Slots
from npurt.device.delta import DeltaError, DeltaNet, DeltaNets, DeltaState
from npurt.device.delta_check import is_right
from npurt.device.device import F32, FLUSHED, UNIT, Device
from npurt.device.verify import WRONG_TWICE, Mode, Sampler
from npurt.errors import DriverError, VerificationFailed
from npurt.runtime.report.ledger import Ledger, Row

LOOSE = DeltaError(2.0**10 * UNIT, FLUSHED)  # accepted error of the CPU's recomputation


class RemoteDelta:
    """Runs a net on a device, one sequence after another.

    If the device fails or computes a wrong result, the CPU takes over permanently.

    Args:
        held: The states of all sequences, which this object moves to the device.
    """

    def __init__(
        self,
        device: Device,
        cpu: CpuDevice,
        ledger: Ledger,
        sampler: Sampler,
        net: DeltaNet,
        held: Recurrence,
    ) -> None:
        assert isinstance(device, DeltaNets), "a device without delta nets"
        self._planned = device.caps.name
        self._nets: DeltaNets = device  # always the same object as `_device`
        self._device: Device = device
        self._cpu = cpu
        self._ledger = ledger
        self._sampler = sampler
        self._net, self._token = net, net.first(1)
        self._held = held
        self._move(device.delta_state)
        self._chance = random.Random()
        self._row = self._row_of("")

    def about(self) -> tuple[str, str]:
        """Return the label of the step and its device."""
        return "delta net", self._device.caps.name

    def verify(self, sampler: Sampler) -> None:
        """Verify the results that *sampler* chooses."""
        self._sampler = sampler

    def redirect_last(self, array: F32) -> None:
        """Raise AssertionError: a delta net is never the last op."""
        raise AssertionError(f"a delta net does not write to {array.shape}")

    def _move(self, make: Callable[[DeltaNet], DeltaState]) -> None:
        """Move the states of all sequences to states that *make* returns."""
        for slots in self._held.slots:
            slots.move(functools.partial(make, self._net))

    def run(self, table: RowTable) -> None:
        """Run the net over the rows of each sequence, and copy states as in `Recurrence.control`.

        Raises:
            VerificationFailed: The result is wrong on the device and on the CPU.
            NotOffloaded: In strict mode, the device failed or computed a wrong result.
        """
        if table.rows == 1:
            self._run(self._token, table.spans[0].slot)
            return
        first = 0
        for span in table.spans:
            self._run(self._net.after(first).first(span.rows), span.slot)
            first += span.rows

    def _run(self, net: DeltaNet, slot: int) -> None:
        """Run *net* over all its tokens, with the state in *slot*."""
        slots, control = self._held.slots[slot], self._held.control[slot]
        start, saved, before = control.tolist()
        if start:
            slots.restore_checkpoint(start)
        if saved >= 0:
            if before:
                self._advance(net.first(before), slots)
                net = net.after(before)
            slots.save(saved)
        if net.v.shape[1]:
            self._advance(net, slots)

    def _advance(self, net: DeltaNet, slots: Slots) -> None:
        state = slots.state
        checked = self._device is not self._cpu and self._chosen(net)
        before = state.checkpoint() if checked else None
        began, packets = time.perf_counter(), self._device.packets()
        calls = self._device.call_count()
        try:
            state.advance(net)
        except DriverError as error:
            self._take_over(f"{self._planned} failed: {error.what}", state)
            slots.state.advance(net)
        self._ledger.notes += self._device.events()
        if self._ledger.trace:
            device = self._device.caps.name
            self._ledger.trace.add("delta net", device, began, rows=net.v.shape[1])
        row = self._row
        if row.actual == self._planned:
            row.packets += self._device.packets() - packets
            row.device_calls += self._device.call_count() - calls
        row.seconds += time.perf_counter() - began
        row.calls += 1
        row.rows += net.v.shape[1]
        if checked and self._device is not self._cpu:
            self._verify(net, slots, before, row)

    def _chosen(self, net: DeltaNet) -> bool:
        kind = self._planned, "delta net", net.v.shape[2:], net.v.shape[1] > 1
        if self._sampler.mode is Mode.SAMPLE and self._sampler.is_first(kind):
            return True
        return bool(self._sampler.choose(1))

    def _row_of(self, reason: str) -> Row:
        name = self._device.caps.name
        return self._ledger.row(Row("delta net", "", (), self._planned, name, reason))

    def _take_over(self, reason: str, state: DeltaState) -> None:
        """Move the net to the CPU permanently; it continues with the arithmetic of *state*."""
        if self._device is self._cpu:
            return
        self._ledger.fallback(f"the CPU takes over delta nets: {reason}")
        self._move(self._cpu.integer_delta_state if state.integers else self._cpu.delta_state)
        self._device = self._nets = self._cpu
        self._row = self._row_of(reason)

    def _verify(self, net: DeltaNet, slots: Slots, before: Any, row: Row) -> None:
        row.verified += 1
        state, head = slots.state, self._chance.randrange(net.v.shape[2])
        values = state.to_float32(before, slice(head, head + 1))
        if _is_right(net, slots, head, values, self._nets.delta_error):
            return
        row.failed += 1
        error = self._nets.delta_error if state.integers else LOOSE
        state.restore_checkpoint(before)
        self._take_over(f"{self._planned} computed a wrong delta net", state)
        slots.state.advance(net)
        if not _is_right(net, slots, head, values, error):
            raise VerificationFailed(
                f"a delta net is wrong on {self._planned} and on the CPU", remedy=WRONG_TWICE
            )


def _is_right(net: DeltaNet, slots: Slots, head: int, before: F32, error: DeltaError) -> bool:
    """Return whether the output and the current state of *head* are correct, given *before*."""
    after = slots.state.read(slice(head, head + 1))
    return is_right(net, head, before, after, error)
