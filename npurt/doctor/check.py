"""Run the checks of a diagnosis, and choose the finding that the user should solve first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from npurt.doctor.system import Evidence, Recorder, System

STATES = ("ok", "warn", "fail", "skip")
NEEDS = "needs "  # start of `CheckResult.what` if a check was skipped because of another check


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check.

    Attributes:
        state: One of `STATES`.
        what: The result in words.
        command: A command or an action that solves the problem; "" if there is none.
        suspect: True for a warning that may be the cause of later failures.
    """

    state: str
    what: str
    command: str = ""
    suspect: bool = False


def ok(what: str) -> CheckResult:
    """Return the result of a check without a problem."""
    return CheckResult("ok", what)


def warn(what: str, command: str = "", *, suspect: bool = False) -> CheckResult:
    """Return the result for a problem with which the device may still run."""
    return CheckResult("warn", what, command, suspect)


def fail(what: str, command: str) -> CheckResult:
    """Return the result for a problem that stops the device from running; *command* solves it."""
    return CheckResult("fail", what, command)


def skip(what: str) -> CheckResult:
    """Return the result of a check that could not run."""
    return CheckResult("skip", what)


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check of one possible problem.

    Attributes:
        name: A short name, for scripts.
        why: The purpose of the check.
        look: The function that does the check.
        needs: Names of earlier checks; this check is skipped if one of them fails.
        symptom: True if a failure has its cause elsewhere, perhaps in an earlier suspect warning.
    """

    name: str
    why: str
    look: Callable[[System], CheckResult]
    needs: tuple[str, ...] = ()
    symptom: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A check, its result, and the evidence that it read."""

    check: DoctorCheck
    result: CheckResult
    evidence: Evidence

    @property
    def waits(self) -> bool:
        """True if the check was skipped because a check that it needs failed or was skipped."""
        return self.result.state == "skip" and self.result.what.startswith(NEEDS)


def diagnose(checks: Sequence[DoctorCheck], system: Recorder) -> list[Finding]:
    """Run the checks in order; skip a check if a check that it needs failed.

    A check is also skipped if a check that it needs was skipped for this reason.
    """
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
    """Return the finding to solve first, or None if no check failed.

    It is the first failure, or the first suspect warning before it if the failure is a symptom.
    """
    for i, finding in enumerate(findings):
        if finding.result.state == "fail":
            suspects = [f for f in findings[:i] if f.result.suspect]
            return suspects[0] if suspects and finding.check.symptom else finding
    return None
