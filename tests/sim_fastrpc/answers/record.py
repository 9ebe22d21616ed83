"""Run scenarios on a library, and read files of answers."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools import build

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


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


def recorded_newer():
    """Return the answers of a newer version of the library that differ from `recorded`."""
    return parse((HERE / "recorded_newer.txt").read_text())


def differences():
    """Return the known differences."""
    found = re.split(r"^\[(\w+) (\w)\] (.*)$", (HERE / "differences.txt").read_text(), flags=re.M)
    return [Difference(*found[i : i + 3], parse(found[i + 3])) for i in range(1, len(found), 4)]


def replaced(answers, others):
    """Return *answers* with those of *others* in place of the same names, or at the end."""
    by_name = dict(others)
    kept = [(name, by_name.pop(name, answer)) for name, answer in answers]
    return kept + list(by_name.items())


def environment(settings=""):
    """Return the environment variables of a process that runs scenarios."""
    return {
        "PYTHONPATH": str(ROOT),
        "DSP_LIBRARY_PATH": str(build.PACKAGE / "hexagon/skel"),
        "NPURT_SIM_FASTRPC": settings,
    }


def run(library, names, settings=""):
    """Run scenarios; return their answers as `parse` does."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim_fastrpc.answers", str(library), *names],
        env={**os.environ, **environment(settings)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return parse(done.stdout)
