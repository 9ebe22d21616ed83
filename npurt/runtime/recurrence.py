"""A gated delta net on another device than the host, verified and accounted for."""

import random
import time

import numpy as np
import numpy.typing as npt

from npurt.cpu.device import CpuDevice
from npurt.device import F32, UNIT, DeltaNet, Device
from npurt.errors import DriverError, VerificationFailed
from npurt.runtime.delta_check import is_right
from npurt.runtime.host import WRONG_TWICE
from npurt.runtime.ledger import Ledger, Row
from npurt.runtime.verify import Mode, Sampler


class RemoteDelta:
    """A net whose state has slots, as `npurt.cpu.program.Program.delta` runs it.

    What its device cannot do, or does wrong, the CPU does, from then on.

    Args:
        forms: By slot, `Device.delta_form` of the state in it; shared by all who have these slots.
    """

    def __init__(
        self,
        device: Device,
        cpu: CpuDevice,
        ledger: Ledger,
        sampler: Sampler,
        net: DeltaNet,
        slots: F32,
        control: npt.NDArray[np.int32],
        forms: dict[int, object],
    ) -> None:
        self._planned = device.caps.name
        self._device = device
        self._cpu = cpu
        self._ledger = ledger
        self._sampler = sampler
        self._net = net
        self._slots = slots
        self._control = control
        self._forms = forms
        self._reason = ""
        self._chance = random.Random()

    def prepare(self) -> None:
        """There is no secret to make."""

    def redirect_last(self, array: F32) -> None:
        """A delta net is never last."""
        raise AssertionError(f"a delta net does not write to {array.shape}")

    def run(self, rows: int, position: int, head: int) -> None:
        """Run the net over *rows* tokens, copying states from and to slots as told.

        Raises:
            VerificationFailed: It is wrong on the device and on the CPU.
            NotOffloaded: In strict mode: the device failed, or was wrong.
        """
        del position, head
        start, saved, before = self._control.tolist()
        net = self._net.first(rows)
        if start:
            self._slots[0] = self._slots[start]
            self._device.resume_delta(net, self._forms.get(start))
        if saved < 0:
            before = 0
        if before:
            self._advance(net.first(before))
        if saved >= 0:
            self._slots[saved] = self._slots[0]
            self._forms[saved] = self._device.delta_form(net)
        if before < rows:
            self._advance(net.after(before))

    def _advance(self, net: DeltaNet) -> None:
        checked = self._device is not self._cpu and self._chosen(net)
        before = net.state.copy() if checked else None
        began, packets = time.perf_counter(), self._device.packets()
        try:
            self._device.delta_net(net)
        except DriverError as error:
            self._take_over(f"{self._planned} failed: {error.what}")
            self._cpu.delta_net(net)
        self._ledger.notes += self._device.news()
        row = self._row()
        row.packets += self._device.packets() - packets if row.actual == self._planned else 0
        row.seconds += time.perf_counter() - began
        row.calls += 1
        row.rows += net.v.shape[1]
        if before is not None and self._device is not self._cpu:
            self._verify(net, before, row)

    def _chosen(self, net: DeltaNet) -> bool:
        kind = self._planned, "delta net", net.v.shape[2:], net.v.shape[1] > 1
        if self._sampler.mode is Mode.SAMPLE and self._sampler.is_first(kind):
            return True
        return bool(self._sampler.choose(1))

    def _row(self) -> Row:
        return self._ledger.row(
            Row("delta net", "", (), self._planned, self._device.caps.name, self._reason)
        )

    def _take_over(self, reason: str) -> None:
        """Let the CPU do it from now on."""
        if self._device is self._cpu:
            return
        self._ledger.fallback(f"the CPU goes on with delta nets: {reason}")
        self._device, self._reason = self._cpu, reason

    def _verify(self, net: DeltaNet, before: F32, row: Row) -> None:
        row.verified += 1
        if is_right(net, before, self._device.delta_error, self._chance):
            return
        row.failed += 1
        self._take_over(f"{self._planned} computed a wrong delta net")
        net.state[...] = before
        self._cpu.delta_net(net)
        if not is_right(net, before, 2.0**10 * UNIT, self._chance):
            raise VerificationFailed(
                f"a delta net is wrong on {self._planned} and on the CPU", remedy=WRONG_TWICE
            )
