"""The Hexagon's row in npurt's table of devices."""

from typing import TYPE_CHECKING

from npurt.backend import Backend
from npurt.base import late

if TYPE_CHECKING:
    from npurt.backend.estimates import Estimator
    from npurt.device.device import Device
    from npurt.doctor.checklist import Checklist


def _open(name: str, threads: int | None) -> "Device":
    with late.imports():
        from npurt.hexagon.device.device import open_hexagon

    del threads
    return open_hexagon(name)


def _checklist(device: str) -> "Checklist":
    with late.imports():
        from npurt.doctor.checklist import Checklist
        from npurt.hexagon.connect.connection import Connection
        from npurt.hexagon.doctor import checks, trial
        from npurt.hexagon.fastrpc import names
        from npurt.hexagon.fastrpc.lib import simulator

    name = names.parse(device)
    connection = Connection(
        library=simulator() if name.simulated else "",
        domain=name.domain,
        simulate=f"arch=v{name.arch}" if name.arch else "",
    )
    probes = {"hexagon": lambda: trial.trial(connection)}
    if name.simulated:
        return Checklist(device, checks.SIMULATED, lambda system: None, probes, simulated=True)
    return Checklist(device, checks.CHECKS, checks.why_not, probes, checks.READERS, checks.collect)


def _estimator() -> "Estimator":
    with late.imports():
        from npurt.hexagon.device.estimator import HexagonEstimator

    return HexagonEstimator()


BACKEND = Backend(
    "hexagon", _open, simulators=("hexagon:sim",), checklist=_checklist, estimator=_estimator
)
