"""The names of devices, and a check of a name that opens no device and loads no numpy."""

from typing import Any

from npurt.errors import UnknownDevice, brief
from npurt.settings import DEVICE, read

KINDS = ("cpu", "hexagon", "rknpu", "numpy")
GROUP = "npurt.devices"  # name of the entry point group
SIMULATORS = ("hexagon:sim", "rknpu:sim", "rknpu:sim-vendor")


def no_device(said: str) -> UnknownDevice:
    """Return the error for *said*, a text from the user that is not a device name."""
    return UnknownDevice(
        f"{said} is not a device name",
        remedy=f"use auto, or one of {', '.join((*KINDS, *SIMULATORS))}",
    )


def entry_points() -> Any:
    """Return the entry points of devices in other packages."""
    from importlib import metadata  # imported here because the import takes 13 ms

    return metadata.entry_points(group=GROUP)


def require_known(name: str | None) -> None:
    """Raise an error if *name*, or `NPURT_DEVICE` without one, names no kind of device.

    Raises:
        UnknownDevice: npurt and other packages have no such device.
    """
    said = brief(name)
    if name in (None, "auto"):
        name = read(DEVICE, str) or "auto"
        said = f"{DEVICE.name}={name!r}"
    kind = str(name).partition(":")[0]
    if kind not in (*KINDS, "auto", "numpy") and kind not in {each.name for each in entry_points()}:
        raise no_device(said)
