"""Open devices by their device strings.

Grammar: ``cpu``, ``auto``, ``numpy``, ``hexagon[:INDEX[/SESSION]]``, ``hexagon:sim[-vNN]``,
``rknpu[:INDEX]``, ``rknpu:sim[-vendor]``.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from npurt.base import late, library
from npurt.cpu.device import CpuDevice
from npurt.cpu.kernels import abi
from npurt.device.device import Device
from npurt.errors import DeviceNotFound, NpurtError, UnknownDevice, brief
from npurt.runtime.open.arguments import optional_integer
from npurt.runtime.open.names import KINDS, entry_points, no_device
from npurt.runtime.open.names import SIMULATORS as SIMULATORS
from npurt.settings import DEVICE, LIBRARIES, read


@dataclass(frozen=True, slots=True)
class Found:
    """A type of device, and whether this machine has it."""

    device: str
    found: bool
    detail: str  # a description, or the reason why the device cannot be used


def open_device(name: str | None = None, *, threads: int | None = None) -> Device:
    """Open the device called *name*; None and ``auto`` mean `NPURT_DEVICE` if set, else the CPU.

    Raises:
        UnknownDevice: *name* is misspelt.
        SettingError: *threads* is not an integer of at least 0.
        DeviceNotFound: This machine has no such device, or npurt cannot use it.
    """
    threads = optional_integer("threads", threads, 0)
    said = brief(name)
    if not isinstance(name, str | None):
        raise no_device(f"{brief(name)}")
    if name is None or name == "auto":
        name = read(DEVICE, str)
        said = f"{DEVICE.name}={name!r}"
    if name == "auto":
        return open_host(threads)
    if name == "cpu":
        return CpuDevice(threads)
    kind = name.partition(":")[0]
    opener = OPENERS.get(kind) or _of_others(kind)
    if opener is None:
        raise no_device(said)
    try:
        return opener(name)
    except DeviceNotFound as error:
        what = f"device {name!r} cannot be used: {error.what}"
        raise type(error)(what, remedy=error.remedy) from error


def open_host(threads: int | None = None) -> Device:
    """Open the CPU, or numpy if npurt's kernels were not compiled."""
    try:
        return CpuDevice(threads)
    except DeviceNotFound as error:
        if read(LIBRARIES, str) or library.path_of(abi.LIBRARY).exists():
            raise
        warnings.warn(f"{error}\nnumpy computes instead, which is slow", stacklevel=3)
        return _numpy("numpy")


def _of_others(kind: str) -> Callable[[str], Device] | None:
    """Return the function of another package that opens devices of *kind*, or None.

    The package declares the function as an entry point in the group `GROUP`.  The function takes a
    device string.

    Raises:
        DeviceNotFound: The function cannot be imported.
    """
    for entry in entry_points():
        if entry.name == kind:
            try:
                opener: Callable[[str], Device] = entry.load()
            except (*late.FAILURES, AttributeError) as error:
                raise DeviceNotFound(
                    f"the package of device {kind!r} cannot be used: {error}",
                    remedy=f"reinstall the package; its entry point is {entry.value}",
                ) from error
            return opener
    return None


def _hexagon(name: str) -> Device:
    with late.imports():
        from npurt.hexagon.device.device import open_hexagon  # loaded on first use

    return open_hexagon(name)


def _rknpu(name: str) -> Device:
    with late.imports():
        from npurt.rknpu.device.device import open_rknpu

    return open_rknpu(name)


def _numpy(name: str) -> Device:
    with late.imports():
        from npurt.reference.device import ReferenceDevice

    if name != "numpy":
        raise UnknownDevice(f"{name!r} is not a device name", remedy="use numpy")
    return ReferenceDevice()


OPENERS = {"hexagon": _hexagon, "rknpu": _rknpu, "numpy": _numpy}


def devices() -> list[Found]:
    """Return all device types: descriptions, or reasons why they are missing.  Never raises."""
    rows = []
    others = sorted({entry.name for entry in entry_points()})
    for kind in (*KINDS, *others):
        try:
            with open_device(kind) as device:
                rows.append(Found(kind, True, device.caps.detail))
        except NpurtError as error:
            reason = "; ".join(line.strip() for line in error.what.splitlines())
            rows.append(Found(kind, False, reason))
    return rows
