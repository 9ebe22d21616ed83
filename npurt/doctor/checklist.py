"""The checklist of one kind of NPU, which its backend writes and `npurt doctor` runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from npurt.doctor.check import DoctorCheck
from npurt.doctor.system import System

Trial = Callable[[], dict[str, Any]]
Reader = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Checklist:
    """The checks of a kind of NPU, its trials, and further data for a bundle.

    Attributes:
        name: The device string.
        checks: The checks, in order.
        why_not: Returns the reason why a machine cannot have this NPU, or None.
        probes: Trials on this machine, by the names that checks use.
        readers: Readers of files, by the names that checks use; see `System.read`.
        collect: Reads additional data, which no check needs, for the bundle.
        simulated: Whether the NPU is simulated.
    """

    name: str
    checks: Sequence[DoctorCheck]
    why_not: Callable[[System], str | None]
    probes: dict[str, Trial] = field(default_factory=dict)
    readers: dict[str, Reader] = field(default_factory=dict)
    collect: Callable[[System], None] = lambda system: None
    simulated: bool = False
