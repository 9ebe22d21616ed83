"""Open devices by their device strings.

Grammar: ``cpu``, ``auto``, ``numpy``, ``hexagon[:INDEX[/SESSION]]``, ``hexagon:sim[-vNN]``,
``rknpu[:INDEX]``, ``rknpu:sim[-vendor]``; and NAME[:TEXT] for a device of another package.
"""

import warnings
from dataclasses import dataclass
from typing import TypeGuard

from npurt.base import library
from npurt.cpu.device import CpuDevice
from npurt.cpu.kernels import abi
from npurt.device.device import Device
from npurt.device.verify import ORACLE
from npurt.errors import DeviceNotFound, NpurtError, brief
from npurt.runtime.open import registry
from npurt.runtime.open.arguments import optional_integer
from npurt.runtime.open.registry import backend_of, entry_points, no_device
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
        return open_cpu(threads)
    backend = backend_of(name)
    if backend is None or backend.name == "cpu":
        raise no_device(said)
    try:
        return backend.open(name, threads)
    except DeviceNotFound as error:
        what = f"device {name!r} cannot be used: {error.what}"
        raise type(error)(what, remedy=error.remedy) from error


def open_cpu(threads: int | None = None) -> CpuDevice:
    """Open the CPU, which also runs the ops that an NPU leaves to it."""
    return CpuDevice(threads)


def open_oracle() -> CpuDevice:
    """Open the CPU with its plainest kernels, which compute wrong products again."""
    return CpuDevice(isa=ORACLE)


def is_cpu(device: Device) -> TypeGuard[CpuDevice]:
    """Return whether *device* is the CPU."""
    return isinstance(device, CpuDevice)


def open_host(threads: int | None = None) -> Device:
    """Open the CPU, or numpy if npurt's kernels were not compiled."""
    try:
        return open_cpu(threads)
    except DeviceNotFound as error:
        if read(LIBRARIES, str) or library.path_of(abi.LIBRARY).exists():
            raise
        warnings.warn(f"{error}\nnumpy computes instead, which is slow", stacklevel=3)
        return registry.BACKENDS["numpy"]().open("numpy", None)


def devices() -> list[Found]:
    """Return all device types: descriptions, or reasons why they are missing.  Never raises."""
    rows = []
    others = sorted({entry.name for entry in entry_points()})
    for kind in (*registry.BACKENDS, *others):
        try:
            with open_device(kind) as device:
                rows.append(Found(kind, True, device.caps.detail))
        except NpurtError as error:
            reason = "; ".join(line.strip() for line in error.what.splitlines())
            rows.append(Found(kind, False, reason))
    return rows
