"""Run the checks of `npurt doctor`: find the NPUs of this machine, their problems and remedies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from npurt.base import late
from npurt.doctor.check import Check, Finding, diagnose, start_here
from npurt.doctor.machine import Machine
from npurt.doctor.system import Recorder, System
from npurt.errors import UnknownDevice
from npurt.settings import SETTINGS

Probe = Callable[[], dict[str, Any]]
Reader = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of NPU: its checks, its trials, and further data for a bundle.

    Attributes:
        name: The name in device strings.
        checks: The checks, in order.
        why_not: Returns the reason why a machine cannot have this NPU, or None.
        probes: Trials on this machine, by the names that checks use.
        readers: Readers of files, by the names that checks use; see `System.read`.
        collect: Reads additional data, which no check needs, for the bundle.
        simulated: Whether the NPU is simulated.
    """

    name: str
    checks: Sequence[Check]
    why_not: Callable[[System], str | None]
    probes: dict[str, Probe] = field(default_factory=dict)
    readers: dict[str, Reader] = field(default_factory=dict)
    collect: Callable[[System], None] = lambda system: None
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings about one type of NPU; *absent* is the reason why no check ran, or ""."""

    kind: str
    findings: tuple[Finding, ...] = ()
    absent: str = ""
    simulated: bool = False

    @property
    def first(self) -> Finding | None:
        """The problem to solve first, or None."""
        return start_here(self.findings)

    @property
    def runs(self) -> bool:
        """Whether the NPU can run."""
        return not self.absent and self.first is None

    def as_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON data."""
        rows = [
            {
                "name": f.check.name,
                "why": f.check.why,
                "state": f.result.state,
                "what": f.result.what,
                "command": f.result.command,
                "evidence": f.evidence,
            }
            for f in self.findings
        ]
        first = self.first.check.name if self.first else None
        about = {"kind": self.kind, "simulated": self.simulated, "absent": self.absent}
        return {**about, "runs": self.runs, "start_here": first, "checks": rows}


def kinds(device: str | None = None) -> list[Kind]:
    """Return the types of NPU to check: all, or only the type that *device* names.

    Raises:
        UnknownDevice: There is no such device.
    """
    makers = {"hexagon": _hexagon, "rknpu": _rknpu}
    if device is None:
        return [make(name) for name, make in makers.items()]
    name = device.partition(":")[0]
    if name not in makers:
        raise UnknownDevice(
            f"the doctor has no checks for device {device!r}",
            remedy="use hexagon, rknpu, hexagon:sim or rknpu:sim, or omit -dev",
        )
    return [makers[name](device)]


def _hexagon(device: str) -> Kind:
    with late.imports():
        from npurt.hexagon.connect.connection import Connection
        from npurt.hexagon.doctor import checks, trial
        from npurt.hexagon.fastrpc import names
        from npurt.hexagon.fastrpc.lib import simulator

    name = names.parse(device)
    simulated = f"arch=v{name.arch}" if name.arch else ""
    connection = Connection(library=simulator() if name.simulated else "", domain=name.domain,
              simulate=simulated)  # fmt: skip
    probes: dict[str, Probe] = {"hexagon": lambda: trial.trial(connection)}
    if name.simulated:
        return Kind(device, checks.SIMULATED, lambda system: None, probes, simulated=True)
    return Kind(device, checks.CHECKS, checks.why_not, probes, checks.READERS, checks.collect)


def _rknpu(device: str) -> Kind:
    with late.imports():
        from npurt.rknpu.doctor import checks as doctor
        from npurt.rknpu.doctor import trial as doctor_trial
        from npurt.rknpu.driver.names import DRIVERS, unknown

    which = device.partition(":")[2]
    if which not in DRIVERS:
        raise unknown(f"the doctor has no checks for device {device!r}")
    probes: dict[str, Probe] = {"rknpu": lambda: doctor_trial.trial(device)}
    if which.startswith("sim"):
        return Kind(device, doctor.SIMULATED, lambda system: None, probes, simulated=True)
    return Kind(device, doctor.CHECKS, doctor.why_not, probes, collect=doctor.collect)


def this_machine(looked_for: Sequence[Kind]) -> Recorder:
    """Return this machine, as a system that records every value read."""
    probes = {name: probe for kind in looked_for for name, probe in kind.probes.items()}
    readers = {name: reader for kind in looked_for for name, reader in kind.readers.items()}
    return Recorder(Machine(probes=probes, readers=readers))


def examine(looked_for: Sequence[Kind], system: Recorder) -> list[Diagnosis]:
    """Run the checks of each type of NPU that the machine may have."""
    found = []
    for kind in looked_for:
        absent = kind.why_not(system)
        findings = () if absent else tuple(diagnose(kind.checks, system))
        found.append(Diagnosis(kind.name, findings, absent or "", kind.simulated))
    return found


def settings() -> list[dict[str, Any]]:
    """Return every environment variable that npurt reads, with its value."""
    return [
        {"name": s.name, "value": s.text(), "default": s.default, "help": s.help} for s in SETTINGS
    ]
