"""`npurt doctor`: which NPU there could be, what keeps it from running, and what mends it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from npurt.doctor.check import Check, Finding, diagnose, start_here
from npurt.doctor.machine import Machine
from npurt.doctor.system import Recorder, System
from npurt.errors import UnknownDevice
from npurt.settings import SETTINGS

Probe = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of NPU: what to check, what to try, and what else a bundle should tell.

    Attributes:
        name: As in device strings.
        checks: In order.
        why_not: Says why a machine cannot have one, or None.
        probes: Trials of this machine, by the name that checks ask for.
        collect: Asks a system for what no check needs.
        simulated: Whether the NPU is simulated.
    """

    name: str
    checks: Sequence[Check]
    why_not: Callable[[System], str | None]
    probes: dict[str, Probe] = field(default_factory=dict)
    collect: Callable[[System], None] = lambda system: None
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found of one kind; *absent* says why there was nothing to check."""

    kind: str
    findings: tuple[Finding, ...] = ()
    absent: str = ""
    simulated: bool = False

    @property
    def first(self) -> Finding | None:
        """The finding to begin with."""
        return start_here(self.findings)

    @property
    def runs(self) -> bool:
        """Whether nothing keeps the NPU from running."""
        return not self.absent and self.first is None

    def as_json(self) -> dict[str, Any]:
        """Return it for scripts."""
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
    """Return the kinds of NPU to look for: all, or that of a device string.

    Raises:
        UnknownDevice: There is no such device.
    """
    makers = {"hexagon": _hexagon, "rknpu": _rknpu}
    if device is None:
        return [make(name) for name, make in makers.items()]
    name = device.partition(":")[0]
    if name not in makers:
        raise UnknownDevice(
            f"the doctor knows nothing of device {device!r}",
            remedy="use hexagon, rknpu, hexagon:sim or rknpu:sim, or leave -dev away",
        )
    return [makers[name](device)]


def _hexagon(device: str) -> Kind:
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
    return Kind(device, checks.CHECKS, checks.why_not, probes, checks.collect)


def _rknpu(device: str) -> Kind:
    from npurt.rknpu.device.device import DRIVERS, NAMES
    from npurt.rknpu.doctor import checks as doctor
    from npurt.rknpu.doctor import trial as doctor_trial

    which = device.partition(":")[2]
    if which not in DRIVERS:
        raise UnknownDevice(
            f"the doctor knows nothing of device {device!r}",
            remedy=f"use {', '.join(NAMES[:-1])} or {NAMES[-1]}",
        )
    probes: dict[str, Probe] = {"rknpu": lambda: doctor_trial.trial(device)}
    if which.startswith("sim"):
        return Kind(device, doctor.SIMULATED, lambda system: None, probes, simulated=True)
    return Kind(device, doctor.CHECKS, doctor.why_not, probes, doctor.collect)


def this_machine(looked_for: Sequence[Kind]) -> Recorder:
    """Return this machine, to be examined and recorded."""
    probes = {name: probe for kind in looked_for for name, probe in kind.probes.items()}
    return Recorder(Machine(probes=probes))


def examine(looked_for: Sequence[Kind], system: Recorder) -> list[Diagnosis]:
    """Make the checks of each kind that the machine may have."""
    found = []
    for kind in looked_for:
        absent = kind.why_not(system)
        findings = () if absent else tuple(diagnose(kind.checks, system))
        found.append(Diagnosis(kind.name, findings, absent or "", kind.simulated))
    return found


def settings() -> list[dict[str, Any]]:
    """Return every variable that npurt reads, and what it is set to."""
    return [
        {"name": s.name, "value": s.text(), "default": s.default, "help": s.help} for s in SETTINGS
    ]
