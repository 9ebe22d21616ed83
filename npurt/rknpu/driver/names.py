"""Device strings of this backend: ``rknpu[:0]``, ``rknpu:sim`` and ``rknpu:sim-vendor``."""

import functools
from collections.abc import Callable

from npurt.errors import UnknownDevice
from npurt.rknpu.driver import detect, uapi_rknpu, uapi_rocket
from npurt.rknpu.driver.base import Driver
from npurt.rknpu.driver.system import LinuxKernel, SimulatedKernel

DRIVERS = {  # text after "rknpu:" -> names of drivers
    "": detect.DRIVERS,
    "0": detect.DRIVERS,
    "sim": (uapi_rocket.NAME,),
    "sim-vendor": (uapi_rknpu.NAME,),
}
NAMES = tuple(f"rknpu:{which}".rstrip(":") for which in DRIVERS)  # device strings


def unknown(what: str) -> UnknownDevice:
    """Return the error for a device string that is not in `NAMES`."""
    return UnknownDevice(what, remedy=f"use {', '.join(NAMES[:-1])} or {NAMES[-1]}")


def connection(name: str) -> tuple[LinuxKernel, Callable[[], Driver]]:
    """Return the system (or simulator) of a device string, and a function that opens its driver.

    Device strings are ``rknpu``, ``rknpu:0``, ``rknpu:sim`` (driver rocket) and
    ``rknpu:sim-vendor``.

    Raises:
        UnknownDevice: *name* is another string.
    """
    kind, _, which = name.partition(":")
    drivers = DRIVERS.get(which)
    if kind != "rknpu":
        raise unknown(f"{name!r} is no NPU of an RK3588")
    if drivers is None:
        raise unknown(f"{name!r} is no device: an RK3588 has one NPU")
    system = SimulatedKernel() if which.startswith("sim") else LinuxKernel()
    return system, functools.partial(detect.open_driver, system, drivers)
