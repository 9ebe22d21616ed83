"""The frame of a diagnosis: checks, what they find, and which finding comes first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from npurt.doctor.system import Evidence, Recorder, System

STATES = ("ok", "warn", "fail", "skip")
NEEDS = "needs "


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found: *command* mends it, *suspect* marks a warning that explains failures."""

    state: str
    what: str
    command: str = ""
    suspect: bool = False


def ok(what: str) -> Result:
    """Nothing is wrong."""
    return Result("ok", what)


def warn(what: str, command: str = "", *, suspect: bool = False) -> Result:
    """The device may still run."""
    return Result("warn", what, command, suspect)


def fail(what: str, command: str) -> Result:
    """The device cannot run until *command* mends it."""
    return Result("fail", what, command)


def skip(what: str) -> Result:
    """There was nothing to look at."""
    return Result("skip", what)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at.

    Attributes:
        name: Short, for scripts.
        why: The purpose of the check.
        look: Does the check.
        needs: Names of checks that must succeed before this one makes sense.
        symptom: True when a failure has its cause elsewhere, perhaps in a suspect warning before.
    """

    name: str
    why: str
    look: Callable[[System], Result]
    needs: tuple[str, ...] = ()
    symptom: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A check, its result, and what was seen."""

    check: Check
    result: Result
    evidence: Evidence

    @property
    def waits(self) -> bool:
        """True when the check was skipped because a check that it needs did not succeed."""
        return self.result.state == "skip" and self.result.what.startswith(NEEDS)


def diagnose(checks: Sequence[Check], system: Recorder) -> list[Finding]:
    """Do the checks in order; skip a check when one that it needs failed or was skipped."""
    findings: list[Finding] = []
    for check in checks:
        system.begin()
        missing = [
            f.check.name
            for f in findings
            if f.check.name in check.needs and (f.result.state == "fail" or f.waits)
        ]
        result = skip(f"{NEEDS}{', '.join(missing)}") if missing else check.look(system)
        seen = {key: system.evidence[key] for key in system.asked}
        findings.append(Finding(check, result, seen))
    return findings


def start_here(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding to begin with: the first cause, or None when nothing failed."""
    for i, finding in enumerate(findings):
        if finding.result.state == "fail":
            suspects = [f for f in findings[:i] if f.result.suspect]
            return suspects[0] if suspects and finding.check.symptom else finding
    return None
