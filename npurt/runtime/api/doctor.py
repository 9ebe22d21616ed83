"""Run the checks of `npurt doctor`: find the NPUs of this machine, their problems and remedies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from npurt.doctor.check import Finding, diagnose, start_here
from npurt.doctor.checklist import Checklist
from npurt.doctor.machine import Machine
from npurt.doctor.system import Recorder
from npurt.errors import UnknownDevice
from npurt.runtime.open import registry
from npurt.settings import SETTINGS


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


def checklists(device: str | None = None) -> list[Checklist]:
    """Return the checklists of the NPUs: all, or only that of the NPU which *device* names.

    Raises:
        UnknownDevice: There is no such device, or npurt has no checks for it.
    """
    if device is None:
        return [each.checklist(each.name) for each in registry.backends() if each.checklist]
    backend = registry.backend_of(device)
    if backend is None or backend.checklist is None:
        raise UnknownDevice(
            f"the doctor has no checks for device {device!r}",
            remedy=f"use {registry.listed(registry.usual_names())}, or omit -dev",
        )
    return [backend.checklist(device)]


def this_machine(looked_for: Sequence[Checklist]) -> Recorder:
    """Return this machine, as a system that records every value read."""
    probes = {name: probe for kind in looked_for for name, probe in kind.probes.items()}
    readers = {name: reader for kind in looked_for for name, reader in kind.readers.items()}
    return Recorder(Machine(probes=probes, readers=readers))


def examine(looked_for: Sequence[Checklist], system: Recorder) -> list[Diagnosis]:
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
