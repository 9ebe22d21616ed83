"""A gated delta net on an NPU: run it, verify it, record it in the ledger."""

import random
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu.checked import WRONG_TWICE
from npurt.cpu.device import CpuDevice
from npurt.cpu.slots import Slots
from npurt.delta import DeltaError, DeltaNet, DeltaNets
from npurt.delta_check import is_right
from npurt.device import F32, FLUSHED, UNIT, Device
from npurt.errors import DriverError, VerificationFailed
from npurt.runtime.report.ledger import Ledger, Row
from npurt.verify import Mode, Sampler

LOOSE = DeltaError(2.0**10 * UNIT, FLUSHED)  # of the CPU, once another device was wrong


class RemoteDelta:
    """A net whose state has slots, as `npurt.cpu.program.Program.delta` runs it.

    When its device fails or computes a wrong result, the CPU takes over for good.
    """

    def __init__(
        self,
        device: Device,
        cpu: CpuDevice,
        ledger: Ledger,
        sampler: Sampler,
        net: DeltaNet,
        slots: Slots,
        control: npt.NDArray[np.int32],
    ) -> None:
        assert isinstance(device, DeltaNets), "a device without delta nets"
        self._planned = device.caps.name
        self._nets: DeltaNets = device  # the same object
        self._device: Device = device
        self._cpu = cpu
        self._ledger = ledger
        self._sampler = sampler
        self._net, self._token = net, net.first(1)
        self._slots = slots
        slots.move(device.delta_state(net))
        self._control = control
        self._chance = random.Random()
        self._row = self._row_of("")

    def about(self) -> tuple[str, str]:
        """Return the label of the step and its device."""
        return "delta net", self._device.caps.name

    def verify(self, sampler: Sampler) -> None:
        """Have results checked that *sampler* chooses."""
        self._sampler = sampler

    def redirect_last(self, array: F32) -> None:
        """Refuse: a delta net is never the last op."""
        raise AssertionError(f"a delta net does not write to {array.shape}")

    def run(self, rows: int, position: int, skip_rows: int) -> None:
        """Run the net over *rows* tokens; copy states from and to slots as `Slots` says.

        Raises:
            VerificationFailed: The result is wrong on the device and on the CPU.
            NotOffloaded: In strict mode: the device failed, or was wrong.
        """
        del position, skip_rows
        start, saved, before = self._control.tolist()
        net = self._token if rows == 1 else self._net.first(rows)
        if start:
            self._slots.restore_checkpoint(start)
        if saved >= 0:
            if before:
                self._advance(net.first(before))
                net = net.after(before)
            self._slots.save(saved)
        if net.v.shape[1]:
            self._advance(net)

    def _advance(self, net: DeltaNet) -> None:
        state = self._slots.state
        checked = self._device is not self._cpu and self._chosen(net)
        before = state.checkpoint() if checked else None
        began, packets = time.perf_counter(), self._device.packets()
        try:
            state.advance(net)
        except DriverError as error:
            self._take_over(f"{self._planned} failed: {error.what}")
            self._slots.state.advance(net)
        self._ledger.notes += self._device.events()
        if self._ledger.trace:
            device = self._device.caps.name
            self._ledger.trace.add("delta net", device, began, rows=net.v.shape[1])
        row = self._row
        row.packets += self._device.packets() - packets if row.actual == self._planned else 0
        row.seconds += time.perf_counter() - began
        row.calls += 1
        row.rows += net.v.shape[1]
        if checked and self._device is not self._cpu:
            self._verify(net, before, row)

    def _chosen(self, net: DeltaNet) -> bool:
        kind = self._planned, "delta net", net.v.shape[2:], net.v.shape[1] > 1
        if self._sampler.mode is Mode.SAMPLE and self._sampler.is_first(kind):
            return True
        return bool(self._sampler.choose(1))

    def _row_of(self, reason: str) -> Row:
        name = self._device.caps.name
        return self._ledger.row(Row("delta net", "", (), self._planned, name, reason))

    def _take_over(self, reason: str) -> None:
        """Move the net to the CPU for good."""
        if self._device is self._cpu:
            return
        self._ledger.fallback(f"the CPU goes on with delta nets: {reason}")
        self._slots.move(self._cpu.delta_state(self._net))
        self._device = self._nets = self._cpu
        self._row = self._row_of(reason)

    def _verify(self, net: DeltaNet, before: Any, row: Row) -> None:
        row.verified += 1
        state, head = self._slots.state, self._chance.randrange(net.v.shape[2])
        values = state.to_float32(before, slice(head, head + 1))
        if self._is_right(net, head, values, self._nets.delta_error):
            return
        row.failed += 1
        state.restore_checkpoint(before)
        self._take_over(f"{self._planned} computed a wrong delta net")
        self._slots.state.advance(net)
        if not self._is_right(net, head, values, LOOSE):
            raise VerificationFailed(
                f"a delta net is wrong on {self._planned} and on the CPU", remedy=WRONG_TWICE
            )

    def _is_right(self, net: DeltaNet, head: int, before: F32, error: DeltaError) -> bool:
        after = self._slots.state.read(slice(head, head + 1))
        return is_right(net, head, before, after, error)
