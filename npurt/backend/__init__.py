"""The contract of a backend: its row in npurt's table of devices, and what its functions return.

Importing this package loads no numpy.  A row's functions import what they need when they are
called, so the table costs nothing.  May import `npurt.device`, `npurt.doctor` and lower packages.
The table is `npurt.runtime.open.registry`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npurt.backend.estimates import Estimator, Rounding
    from npurt.backend.probe import DeviceProbe
    from npurt.device.device import Device
    from npurt.doctor.checklist import Checklist


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of device: its name, and a function for each thing that npurt does with it.

    A function that is None means that npurt does not do this with the device.  A device string is
    the name, or the name, a colon and a text whose meaning is the backend's: "rknpu:sim".

    Attributes:
        name: The name of the device, and the beginning of its device strings.
        open: Opens the device with a device string; the second argument is the number of CPU
            threads, for a backend that runs on the host.  For `npurt.open_device`.
        is_npu: Whether help and messages offer the device as an NPU.
        simulators: Device strings of simulated devices; the first is the usual one.
        checklist: Returns the checks of the device with a device string, for `npurt doctor`.
        probe: Returns the trials of the device with a device string, for `npurt probe`; the second
            argument is whether to include trials that may hang the device.
        estimator: Returns the cost model of the device, for `npurt plan`.
        rounding: Returns how the device rounds weights, for the errors in `npurt plan`; it needs a
            simulator, which measures the effect.
    """

    name: str
    open: Callable[[str, int | None], "Device"]
    is_npu: bool = True
    simulators: tuple[str, ...] = ()
    checklist: "Callable[[str], Checklist] | None" = None
    probe: "Callable[[str, bool], DeviceProbe] | None" = None
    estimator: "Callable[[], Estimator] | None" = None
    rounding: "Callable[[], Rounding] | None" = None
