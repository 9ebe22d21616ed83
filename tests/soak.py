"""Search for defects for a given time: `make soak SECONDS=3600`, or `--only NAME`.

Each search gets an equal share of the seconds.  A search that ends early is repeated, with another
random seed if it takes one. A search that fails is not repeated, and the exit status is then 1. A
search that still runs when its time is up is stopped, which is no failure.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
FUZZ = (sys.executable, "-m", "tests.fuzz", "--seed", "{seed}", "--seconds", "{seconds}")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
EXPLORE = "--hypothesis-profile=explore"

# A command with "{seconds}" ends by itself after that time; "{seed}" is a new number for each run.
SEARCHES = {
    "properties": (*PYTEST, EXPLORE, "tests"),
    "fuzzers": FUZZ,
    "fuzzers of C": (".ci/sanitized", "address", *FUZZ, "--native"),
    "verification": (sys.executable, "bench/soak_verification.py", "--checks", "100000",
                     "--seed", "{seed}"),
    "kernels": (".ci/sanitized", "address", *PYTEST, EXPLORE, "tests/cpu", "tests/rknpu"),
    "simulators": (".ci/sanitized", "address", *PYTEST, "tests/sim_fastrpc", "tests/sim_rknpu"),
    "pool": (".ci/sanitized", "thread", *PYTEST, "tests/cpu/test_pool.py"),
}  # fmt: skip


def search(command, seconds):
    """Run *command* repeatedly for *seconds*; return the number of runs and the last status."""
    keeps_to_it = "{seconds}" in command
    until, ended, status = time.monotonic() + seconds, 0, 0
    while status == 0 and (left := until - time.monotonic()) > 0:
        words = {"seconds": left, "seed": random.getrandbits(40)}
        process = subprocess.Popen(
            [word.format(**words) for word in command], cwd=PROJECT, start_new_session=True
        )
        try:
            status = process.wait(None if keeps_to_it else left)
            ended += 1
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    return ended, status


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600, help="for all of them together")
    parser.add_argument("--only", nargs="+", default=list(SEARCHES), choices=SEARCHES)
    args = parser.parse_args()
    results = {}
    for name in args.only:
        results[name] = search(SEARCHES[name], args.seconds / len(args.only))
    for name, (ended, status) in results.items():
        said = f"failed with status {status}" if status else "found nothing"
        print(f"{name:12} {said}, {ended} whole runs")
    return int(any(status for _, status in results.values()))


if __name__ == "__main__":
    sys.exit(main())
