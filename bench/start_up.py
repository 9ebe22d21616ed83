"""Measure how long `import npurt` and `npurt --version` take, beside a Python that does nothing.

    python bench/start_up.py --runs 21

Prints the median of each, in milliseconds: from start to end, and the time of the CPU.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

NPURT = "import sys; from npurt.cli import main; sys.exit(main())"  # as the script that pip makes
STARTS = {
    "python -c pass": ["-c", "pass"],
    "import npurt": ["-c", "import npurt"],
    "npurt --version": ["-c", NPURT, "--version"],
    "npurt run --help": ["-c", NPURT, "run", "--help"],
}


def measured(arguments: list[str]) -> tuple[float, float]:
    """Return the milliseconds of one start: elapsed, and of the CPU."""
    before = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0  # it is waited for already
    return 1e3 * (time.perf_counter() - before), 1e3 * (used.ru_utime + used.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=21)
    args = parser.parse_args()
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in STARTS}
    for _ in range(args.runs):  # in turn, so that all meet the same load
        for name, arguments in STARTS.items():
            rows[name].append(measured(arguments))
    print("| | elapsed, ms | CPU, ms |\n|---|---|---|")
    for name, pairs in rows.items():
        elapsed, cpu = (statistics.median(each) for each in zip(*pairs, strict=True))
        print(f"| {name} | {elapsed:.0f} | {cpu:.0f} |")


if __name__ == "__main__":
    main()
