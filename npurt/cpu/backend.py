"""The CPU's row in npurt's table of devices."""

from typing import TYPE_CHECKING

from npurt.backend import Backend
from npurt.base import late

if TYPE_CHECKING:
    from npurt.device.device import Device


def _open(name: str, threads: int | None) -> "Device":
    with late.imports():
        from npurt.cpu.device import CpuDevice

    del name
    return CpuDevice(threads)


BACKEND = Backend("cpu", _open, is_npu=False)
