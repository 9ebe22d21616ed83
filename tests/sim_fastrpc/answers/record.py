"""Run the scenarios on a library, and read files of answers.

    python -m tests.sim_fastrpc.answers.record LIBRARY [SETTINGS]

prints the answers of a library in the form of recorded.txt.  SETTINGS are those of npurt's
simulator.
"""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from npurt import build
from tests.limits import HANG_SECONDS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FAULTS = {"crash": "crash=1", "crash_queue": "crash=1", "restart": "ssr=1:2000"}
FAULTS["absent"] = "present=0"


def parse(text):
    """Return {scenario: (end of its process, [(name, answer)])}, in order."""
    scenarios = {}
    for line in text.splitlines():
        name, _, answer = line.strip().rpartition(": ")
        if line.startswith("  "):
            scenarios[next(reversed(scenarios))][1].append((name, answer))
        elif line and not line.startswith("#"):
            scenarios[name] = (answer, [])
    return scenarios


@dataclass(frozen=True, slots=True)
class Difference:
    """Answers of npurt's simulator that differ from the library's, and the reason."""

    mode: str  # strict, both
    weight: str  # B, C
    reason: str
    scenarios: dict  # as of parse()


def recorded():
    """Return the answers of Qualcomm's library."""
    return parse((HERE / "recorded.txt").read_text())


def differences():
    """Return the known differences."""
    found = re.split(r"^\[(\w+) (\w)\] (.*)$", (HERE / "differences.txt").read_text(), flags=re.M)
    return [Difference(*found[i : i + 3], parse(found[i + 3])) for i in range(1, len(found), 4)]


def replaced(answers, others):
    """Return *answers* with those of *others* in place of the same names, or at the end."""
    by_name = dict(others)
    kept = [(name, by_name.pop(name, answer)) for name, answer in answers]
    return kept + list(by_name.items())


def run(library, name, *, settings="", **variables):
    """Run a scenario; return the end of its process, and its answers."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DSP_LIBRARY_PATH": str(build.PACKAGE / "hexagon/skel"),
        "NPURT_SIM_FASTRPC": f"{settings} {FAULTS.get(name, '')}".strip(),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim_fastrpc.answers", str(library), name],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=HANG_SECONDS,
    )
    lines = [line.rpartition(": ") for line in done.stdout.splitlines()]
    return how(done.returncode), [(name, answer) for name, _, answer in lines]


def how(status):
    """Return the end of a process in one word."""
    return "ends" if status == 0 else signal.Signals(-status).name if status < 0 else str(status)


def main(library, settings=""):
    for name in recorded():
        ending, answers = run(library, name, settings=settings)
        lines = [f"{name}: {ending}", *(f"  {asked}: {answer}" for asked, answer in answers)]
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
