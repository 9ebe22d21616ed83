"""The row of the device ``numpy`` in npurt's table of devices."""

from typing import TYPE_CHECKING

from npurt.backend import Backend
from npurt.base import late
from npurt.errors import UnknownDevice

if TYPE_CHECKING:
    from npurt.device.device import Device


def _open(name: str, threads: int | None) -> "Device":
    with late.imports():
        from npurt.reference.device import ReferenceDevice

    del threads
    if name != "numpy":
        raise UnknownDevice(f"{name!r} is not a device name", remedy="use numpy")
    return ReferenceDevice()


BACKEND = Backend("numpy", _open, is_npu=False)
