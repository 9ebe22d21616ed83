"""Open the devices of a model: the device that the user chose, and the host for everything else."""

import contextlib
from typing import Self

from npurt.device.device import Device
from npurt.reference.device import ReferenceDevice
from npurt.runtime.execute.executor import runs_graphs
from npurt.runtime.open.devices import is_cpu, open_cpu, open_device, open_host


class Devices:
    """The devices of a model.

    Args:
        device: A name, as for `npurt.open_device`, or an open device.
        threads: The number of CPU threads.

    Attributes:
        device: The device that runs matrix products.
        cpu: Runs the graph if *device* runs only matrix products; *device* itself if that is the
            CPU; None if *device* runs graphs.
        other: Runs the ops that *device* does not support, and replaces *device* after a failure.
    """

    def __init__(self, device: str | Device | None, threads: int | None) -> None:
        self.other: Device = ReferenceDevice(by_row=True)  # it supports all ops
        with contextlib.ExitStack() as opened:
            if not isinstance(device, Device):
                device = opened.enter_context(open_device(device, threads=threads))
            mine = device if is_cpu(device) else None
            if mine is None and not runs_graphs(device):
                mine = opened.enter_context(open_cpu(threads))
            elif mine is None and type(device) is not ReferenceDevice:
                self.other = opened.enter_context(open_host(threads))
            self.cpu = mine
            self.device = device
            self._opened = opened.pop_all()

    @property
    def host(self) -> Device:
        """The device that computes on the host."""
        return self.cpu or self.other

    @property
    def threads(self) -> int:
        """The number of CPU threads; 1 if numpy replaces the CPU kernels."""
        host = self.host
        return host.engine.threads if is_cpu(host) else 1

    def close(self) -> None:
        """Close the devices that this object opened.  A second call does nothing."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
