"""Measure the time of `import npurt`, `npurt --version` and others, and of an empty Python program.

    python bench/start_up.py --runs 21

Prints the medians in milliseconds: elapsed time and CPU time.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

# The program that pip installs as `npurt`.
NPURT = "import sys; from npurt.cli import main; sys.exit(main())"
STARTS = {
    "python -c pass": ["-c", "pass"],
    "import npurt": ["-c", "import npurt"],
    "npurt --version": ["-c", NPURT, "--version"],
    "npurt run --help": ["-c", NPURT, "run", "--help"],
}


def measured(arguments: list[str]) -> tuple[float, float]:
    """Run Python once with *arguments*; return elapsed and CPU milliseconds."""
    before = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0  # os.wait4 has reaped the process
    return 1e3 * (time.perf_counter() - before), 1e3 * (used.ru_utime + used.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=21)
    args = parser.parse_args()
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in STARTS}
    for _ in range(args.runs):  # in turn, so that other load affects all alike
        for name, arguments in STARTS.items():
            rows[name].append(measured(arguments))
    print("| | elapsed, ms | CPU, ms |\n|---|---|---|")
    for name, pairs in rows.items():
        elapsed, cpu = (statistics.median(each) for each in zip(*pairs, strict=True))
        print(f"| {name} | {elapsed:.0f} | {cpu:.0f} |")


if __name__ == "__main__":
    main()
