"""The table of devices, and a check of a device string that opens no device and loads no numpy.

A new device of npurt is a package, with a module that has its row, and the row's name here.  Other
packages declare rows as entry points.
"""

from collections.abc import Callable, Sequence
from typing import Any

from npurt.backend import Backend
from npurt.base import late
from npurt.errors import DeviceNotFound, UnknownDevice, brief
from npurt.settings import DEVICE, read


def _cpu() -> Backend:
    from npurt.cpu.backend import BACKEND  # each import loads one small module, when it is needed

    return BACKEND


def _hexagon() -> Backend:
    from npurt.hexagon.backend import BACKEND

    return BACKEND


def _rknpu() -> Backend:
    from npurt.rknpu.backend import BACKEND

    return BACKEND


def _numpy() -> Backend:
    from npurt.reference.backend import BACKEND

    return BACKEND


# The rows by name, in the order of `npurt devices`.
BACKENDS: dict[str, Callable[[], Backend]] = {
    "cpu": _cpu,
    "hexagon": _hexagon,
    "rknpu": _rknpu,
    "numpy": _numpy,
}
GROUP = "npurt.devices"  # name of the entry point group


def entry_points() -> Any:
    """Return the entry points of devices in other packages."""
    from importlib import metadata  # imported here because the import takes 13 ms

    return metadata.entry_points(group=GROUP)


def own_backends() -> list[Backend]:
    """Return the rows of npurt's own devices."""
    return [row() for row in BACKENDS.values()]


def backends() -> list[Backend]:
    """Return the rows of npurt's own devices, and of other packages that can be imported."""
    found = own_backends()
    for entry in entry_points():
        if entry.name not in BACKENDS:
            try:
                found.append(_loaded(entry))
            except DeviceNotFound:  # `npurt devices` shows the reason
                continue
    return found


def backend_of(device: str) -> Backend | None:
    """Return the row of the device with this device string, or None if there is none.

    Raises:
        DeviceNotFound: The package of the device cannot be imported.
    """
    name = device.partition(":")[0]
    if name in BACKENDS:
        return BACKENDS[name]()
    return next((_loaded(entry) for entry in entry_points() if entry.name == name), None)


def _loaded(entry: Any) -> Backend:
    """Return the row that an entry point names; a function is a row that only opens the device.

    Raises:
        DeviceNotFound: It cannot be imported.
    """
    try:
        found = entry.load()
    except (*late.FAILURES, AttributeError) as error:
        raise DeviceNotFound(
            f"the package of device {entry.name!r} cannot be used: {error}",
            remedy=f"reinstall the package; its entry point is {entry.value}",
        ) from error
    if isinstance(found, Backend):
        return found
    return Backend(entry.name, lambda name, threads: found(name))


def simulators() -> list[str]:
    """Return the device strings of npurt's simulated devices."""
    return [name for each in own_backends() for name in each.simulators]


def usual_names() -> list[str]:
    """Return the device strings of npurt's NPUs, and of the usual simulator of each."""
    npus = [each for each in own_backends() if each.is_npu]
    return [each.name for each in npus] + [name for each in npus for name in each.simulators[:1]]


def listed(names: Sequence[str], last: str = "or") -> str:
    """Return *names* as a list in a sentence: "a, b or c"."""
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def no_device(said: str) -> UnknownDevice:
    """Return the error for *said*, a text from the user that is not a device name."""
    names = (*BACKENDS, *simulators())
    return UnknownDevice(
        f"{said} is not a device name", remedy=f"use auto, or one of {', '.join(names)}"
    )


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
    if kind not in ("auto", *BACKENDS) and kind not in {each.name for each in entry_points()}:
        raise no_device(said)
