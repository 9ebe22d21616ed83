"""Measure how fast this machine's cores read memory, which limits decode.

    python bench/bandwidth.py --threads 1 2 --streams 1 4 8

Compiles bandwidth.c with the `ziglang` package. On a board with fast and slow cores, select the
fast ones: `taskset -c 4-7 python bench/bandwidth.py`.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

SOURCE = Path(__file__).with_name("bandwidth.c")


def compiled(folder: str) -> Path:
    program = Path(folder) / "bandwidth"
    zig = [sys.executable, "-m", "ziglang", "cc", "-O3", "-mcpu=native"]
    subprocess.run([*zig, "-o", program, SOURCE, "-lpthread"], check=True)
    return program


def measure(program: Path, nbytes: int, threads: int, streams: int, passes: int) -> list[float]:
    """Return GB/s (10^9) of each pass, without the first, which warms up."""
    command = [program, *(str(n) for n in (nbytes, threads, streams, passes + 1))]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    return [float(line) for line in done.stdout.split()][1:]


def main() -> None:
    cpus = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description="Measure read bandwidth.")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, cpus}))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8], choices=(1, 2, 4, 8))
    parser.add_argument("--mib", type=int, default=1024, help="size of the buffer")
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(folder)
        for threads, streams in tqdm(list(itertools.product(args.threads, args.streams))):
            rates = measure(program, args.mib << 20, threads, streams, args.passes)
            rows.append({"threads": threads, "streams": streams, "gb_per_second": rates})
    if args.json:
        print(json.dumps(rows))
        return
    print(f"Read bandwidth, {args.mib} MiB, GB/s (10^9): median [min-max] of {args.passes} passes")
    for row in rows:
        rates = row["gb_per_second"]
        median = f"{statistics.median(rates):.1f} [{min(rates):.1f}-{max(rates):.1f}]"
        print(f"{row['threads']} threads, {row['streams']} streams: {median}")


if __name__ == "__main__":
    main()
