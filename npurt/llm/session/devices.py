"""The devices of a model: the one that was asked for, and the host that does the rest."""

import contextlib
from typing import Self

from npurt.cpu.device import CpuDevice
from npurt.device import Device
from npurt.reference.device import ReferenceDevice
from npurt.runtime.execute.executor import runs_graphs
from npurt.runtime.open.devices import open_device, open_host


class Devices:
    """The devices of a model; `close` closes those that were opened here.

    Args:
        device: A name, as for `npurt.open_device`, or an open device.
        threads: CPU threads.

    Attributes:
        device: Where products run.
        cpu: Runs the graph of a device that only multiplies, and may be that device; None when
            *device* runs graphs itself.
        other: Runs the ops that *device* refuses, and goes on when it fails.
    """

    def __init__(self, device: str | Device | None, threads: int | None) -> None:
        self.cpu: CpuDevice | None = None
        self.other: Device = ReferenceDevice(by_row=True)  # it refuses nothing
        with contextlib.ExitStack() as opened:
            if not isinstance(device, Device):
                device = opened.enter_context(open_device(device, threads=threads))
            if isinstance(device, CpuDevice):
                self.cpu = device
            elif not runs_graphs(device):
                self.cpu = opened.enter_context(CpuDevice(threads))
            elif type(device) is not ReferenceDevice:
                self.other = opened.enter_context(open_host(threads))
            self.device = device
            self._opened = opened.pop_all()

    @property
    def host(self) -> Device:
        """What computes on the host."""
        return self.cpu or self.other

    @property
    def threads(self) -> int:
        """CPU threads in use; 1 where numpy is in place of the CPU's kernels."""
        return self.host.engine.threads if isinstance(self.host, CpuDevice) else 1

    def close(self) -> None:
        """Close the devices that were opened here.  A second call does nothing."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
