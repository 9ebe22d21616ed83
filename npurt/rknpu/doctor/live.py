"""Checks that read the results of a trial of the NPU (`trial`)."""

import re
from typing import Any

from npurt.doctor.check import CheckResult, fail, ok
from npurt.doctor.system import System

TRIAL = "rknpu"
IN_USE = "is in use by"
REPORT = (
    "sudo dmesg | grep -i -e rocket -e rknpu -e npu shows the kernel's messages; npurt doctor "
    "--bundle report.tar.gz collects the data for a report"
)
_HUNG = "sudo reboot, because an NPU may hang until a restart; " + REPORT


def _opened(system: System) -> dict[str, Any]:
    opened = system.probe(TRIAL).get("opened")
    return opened if isinstance(opened, dict) else {}


def version(system: System) -> str:
    """Return the release that the opened driver reports, or ""."""
    found = re.search(r"rknpu (\d+\.\d+\.\d+)", str(_opened(system).get("detail", "")))
    return found[1] if found else ""


def alone(system: System) -> CheckResult:
    """Check that no other program uses the NPU: two programs at once can crash a board."""
    error = str(_opened(system).get("error", ""))
    if IN_USE not in error:
        return ok("no other program uses the NPU")
    holder = error.rpartition(f"{IN_USE} ")[2]
    number = re.search(r"\d+", holder)
    return fail(error, f"ps -fp {number[0]}" if number else "ps ax | grep npurt")


def opens(system: System) -> CheckResult:
    """Check that npurt can open the driver, which reports its name, version and cores."""
    opened = _opened(system)
    if "detail" in opened:
        return ok(str(opened["detail"]))
    if "error" in opened:
        return fail(str(opened["error"]), str(opened.get("remedy") or REPORT))
    ended = system.probe(TRIAL).get("ended") or "it was not tried"
    return fail(f"the NPU cannot be opened: {ended}", _HUNG)


def products(system: System) -> CheckResult:
    """Check the results of the products of `npurt probe`."""
    seen = system.probe(TRIAL)
    told = seen.get("trials")
    trials = [t for t in told if isinstance(t, dict)] if isinstance(told, list) else []
    bad = [trial for trial in trials if trial.get("state") != "ok"]
    if bad:
        first = " ".join(str(bad[0].get(key, "")) for key in ("name", "shape", "state", "what"))
        return fail(f"{len(bad)} of {len(trials)} are not right: {first}", f"npurt probe; {REPORT}")
    if seen.get("ended") or not trials:
        return fail(f"after {len(trials)} products: {seen.get('ended') or 'none was made'}", _HUNG)
    return ok(f"{len(trials)} small products equal numpy's")
