"""The row of the RK3588's NPU in npurt's table of devices."""

from typing import TYPE_CHECKING

from npurt.backend import Backend
from npurt.base import late

if TYPE_CHECKING:
    from npurt.backend.estimates import Estimator, Rounding
    from npurt.backend.probe import DeviceProbe
    from npurt.device.device import Device
    from npurt.doctor.checklist import Checklist


def _open(name: str, threads: int | None) -> "Device":
    with late.imports():
        from npurt.rknpu.device.device import open_rknpu

    del threads
    return open_rknpu(name)


def _checklist(device: str) -> "Checklist":
    with late.imports():
        from npurt.doctor.checklist import Checklist
        from npurt.rknpu.doctor import checks, trial
        from npurt.rknpu.driver.names import DRIVERS, unknown

    which = device.partition(":")[2]
    if which not in DRIVERS:
        raise unknown(f"the doctor has no checks for device {device!r}")
    probes = {"rknpu": lambda: trial.trial(device)}
    if which.startswith("sim"):
        return Checklist(device, checks.SIMULATED, lambda system: None, probes, simulated=True)
    return Checklist(device, checks.CHECKS, checks.why_not, probes, collect=checks.collect)


def _probe(device: str, unsafe: bool) -> "DeviceProbe":
    with late.imports():
        from npurt.rknpu.doctor.probe import trials

    return trials(device, unsafe=unsafe)


def _estimator() -> "Estimator":
    with late.imports():
        from npurt.rknpu.device.estimator import RknpuEstimator

    return RknpuEstimator()


def _rounding() -> "Rounding":
    with late.imports():
        from npurt.rknpu.device.estimator import RknpuRounding

    return RknpuRounding()


BACKEND = Backend(
    "rknpu",
    _open,
    simulators=("rknpu:sim", "rknpu:sim-vendor"),
    checklist=_checklist,
    probe=_probe,
    estimator=_estimator,
    rounding=_rounding,
)
