"""Read the findings of a trial of the DSP (see `trial`) from evidence, even a stranger's."""

from typing import Any

from npurt.doctor.system import System
from npurt.hexagon.fastrpc.abi import CDSP

TRIAL = "hexagon"


def domain(system: System) -> str:
    """Return the DSP of the trial, a key of `CDSP`."""
    name = system.probe(TRIAL).get("domain")
    return name if isinstance(name, str) and name in CDSP else "cdsp"


def step(system: System, name: str) -> dict[str, Any]:
    """Return the findings of a step, or {} if the step did not run."""
    steps = system.probe(TRIAL).get("steps")
    found = steps.get(name) if isinstance(steps, dict) else None
    return found if isinstance(found, dict) else {}


def number(found: dict[str, Any], name: str) -> float:
    """Return a number of a step; 0 if there is none."""
    value = found.get(name)
    return value if isinstance(value, int | float) else 0.0


def items(found: dict[str, Any], name: str) -> list[Any]:
    """Return a list of a step; [] if there is none."""
    value = found.get(name)
    return value if isinstance(value, list) else []


def texts(found: dict[str, Any], name: str) -> list[str]:
    """Return the texts in a list of a step."""
    return [item for item in items(found, name) if isinstance(item, str)]
