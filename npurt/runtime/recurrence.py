"""A gated delta net on another device than the host."""

import time

import numpy as np
import numpy.typing as npt

from npurt.device import F32, DeltaNet, Device
from npurt.runtime.ledger import Ledger, Row


class RemoteDelta:
    """A net whose state has slots, as `npurt.cpu.program.Program.delta` runs it."""

    def __init__(
        self,
        device: Device,
        ledger: Ledger,
        net: DeltaNet,
        slots: F32,
        control: npt.NDArray[np.int32],
    ) -> None:
        self._device = device
        self._ledger = ledger
        self._net = net
        self._slots = slots
        self._control = control

    def prepare(self) -> None:
        """There is no secret to make."""

    def redirect_last(self, array: F32) -> None:
        """A delta net is never last."""
        raise AssertionError(f"a delta net does not write to {array.shape}")

    def run(self, rows: int, position: int, head: int) -> None:
        """Run the net over *rows* tokens, copying states from and to slots as told."""
        del position, head
        start, saved, before = self._control.tolist()
        if start:
            self._slots[0] = self._slots[start]
        net, began = self._net.first(rows), time.perf_counter()
        if saved < 0:
            before = 0
        if before:
            self._device.delta_net(net.first(before))
        if saved >= 0:
            self._slots[saved] = self._slots[0]
        if before < rows:
            self._device.delta_net(net.after(before))
        name = self._device.caps.name
        row = self._ledger.row(Row("delta net", "", (), name, name))
        row.calls += 1
        row.rows += rows
        row.seconds += time.perf_counter() - began
