"""Questions to the mainline driver and answers in words, for Linux's driver and the simulated one.

    python -m tests.sim_rknpu.protocol --kernel     # on a machine with the driver; else simulated

The recorded answers are those of Linux's driver under User-Mode Linux, on the simulator's model of
a core (sim/rocket_kernel), so any difference is one of the drivers.  An answer has no times, and
does not depend on the size of the memory.
"""

import argparse
import platform
import sys
import time
from pathlib import Path

from tests.sim_rknpu import client, questions_buffers, questions_jobs
from tests.sim_rknpu.client import Rocket
from tests.sim_rknpu.questions import CASES, DRIVER_FREES_S

QUESTIONS = questions_buffers, questions_jobs  # of the table, in the order of the recordings
RECORDINGS = Path(__file__).parents[1] / "data/rocket"


def recorded():
    """Return the recordings: kernel name -> question -> answer."""
    return {path.stem: dict(_rows(path)) for path in sorted(RECORDINGS.glob("*.tsv"))}


def _rows(path):
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            name, _, answer = line.partition("\t")
            yield name, answer


def ask(name, system=None):
    """Return the answer to a question, and close the files that the question opened."""
    files = []

    def opened():
        files.append(Rocket(system=system))
        return files[-1]

    try:
        return CASES[name](opened)
    finally:
        time.sleep(DRIVER_FREES_S if system else 0)
        for each in files:
            each.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kernel", action="store_true", help="ask this machine's driver")
    parser.add_argument("names", nargs="*", help="questions; all of them when none is named")
    args = parser.parse_args()
    if not args.kernel:
        client.configure("strict=0 hang_ms=100 log=0")
    sys.stdout.write(f"# Linux {platform.release()}\n" if args.kernel else "# the simulator\n")
    for name in args.names or CASES:
        answer = ask(name, client.kernel() if args.kernel else None)
        sys.stdout.write(f"{name}\t{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
