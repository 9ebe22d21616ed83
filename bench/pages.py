"""Time runs with rows of several sequences, or compare this checkout with another one.

    python bench/pages.py --models models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf
    python bench/pages.py --models models/*.gguf --old ../another/checkout

Without --old: runs with one row of each of 1, 2, 4 and 8 sequences at one depth take turns. The
figures are medians of the rounds: the time of a run, and its tokens per second relative to those of
one sequence. With --old: a process of each checkout does the same decode or prefill runs, in turns
of a fraction of a second. The figure is the median of old time / new time; above 1, this checkout
is faster. Keys and values are random numbers, so any depth is available without a prefill.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WORK = """
import sys
sys.path.insert(0, sys.argv[1])
import json, runpy
worker = runpy.run_path(sys.argv[2])["Worker"](*json.loads(sys.argv[3]))
for line in sys.stdin:
    print(json.dumps(worker.seconds(*json.loads(line))), flush=True)
"""


class Worker:
    """A model on the CPU that runs rows and times its runs."""

    def __init__(self, path: str, threads: int, positions: int, sequences: int) -> None:
        from npurt.cpu.device import CpuDevice
        from npurt.device.segment import Limits
        from npurt.graph.rows import Rows
        from npurt.llm.arch.reading import describe
        from npurt.llm.arch.weights import FileWeights
        from npurt.llm.file.gguf import GGUF

        self._rows = Rows
        file = GGUF(path)
        graph = describe(file).graph(positions)
        limits = Limits(rows=512, positions=positions, sequences=sequences)
        self._device = CpuDevice(threads)
        self._segment = self._device.compile(graph.graph, FileWeights(file, graph), limits)
        self._depths: dict[int, int] = {}

    def _fill(self, sequence: int, depth: int) -> None:
        """Fill the first *depth* positions of a sequence with random keys and values."""
        from npurt.graph.tensor import POSITIONS, Kind

        if self._depths.get(sequence) == depth or not depth:
            return
        rng = np.random.default_rng(sequence)
        for state in self._segment.part.tensors(Kind.STATE):
            if POSITIONS in state.shape:
                values = rng.standard_normal((depth, state.columns), np.float32)
                self._segment.write(state, sequence, values.astype(np.float16))
        self._depths[sequence] = depth

    def seconds(self, sequences: int, rows: int, depth: int, runs: int) -> float:
        """Return the seconds of a run with *rows* rows of each sequence at *depth*."""
        for sequence in range(sequences):
            self._fill(sequence, depth)
        index = np.arange(sequences * rows)
        table = self._rows(index // rows, depth + index % rows, index % rows == rows - 1)
        tokens = {"tokens": 100 + index}
        start = time.perf_counter()
        for _ in range(runs):
            self._segment.run(tokens, table)
        return (time.perf_counter() - start) / runs


def together(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return milliseconds per run and relative tokens per second, by number of sequences."""
    maximum = max(args.sequences)
    worker = Worker(str(path), args.threads, args.depth + 64, maximum)
    times: dict[int, list[float]] = {n: [] for n in args.sequences}
    for n in args.sequences:
        worker.seconds(n, 1, args.depth, 2)
    for _ in range(args.rounds):
        for n in args.sequences:
            times[n].append(worker.seconds(n, 1, args.depth, 2))
    return {
        str(n): {
            "ms": round(1e3 * statistics.median(times[n]), 2),
            "relative": round(
                statistics.median(n * a / b for a, b in zip(times[1], times[n], strict=True)), 2
            ),
        }
        for n in args.sequences
    }


class Checkout:
    """A process that runs a `Worker` with the code of a checkout."""

    def __init__(self, checkout: Path, *arguments: object) -> None:
        here = Path(__file__).resolve()
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORK, str(checkout), str(here), json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout)},
        )

    def seconds(self, *arguments: int) -> float:
        """Return what `Worker.seconds` returns in the process."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        return float(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def against(path: Path, args: argparse.Namespace) -> dict[str, list[float]]:
    """Return old time / new time for decode and prefill: median, least and greatest of processes.

    Each pair of processes has memory of its own, which can make all runs of a process several
    percent faster or slower.
    """
    checkouts = args.old.resolve(), Path(__file__).resolve().parents[1]
    deepest = max(args.depths) + args.prompt
    found: dict[str, list[float]] = {}
    for number in range(args.processes):
        order = checkouts[:: -1 if number % 2 else 1]
        opened = {c: Checkout(c, str(path.resolve()), args.threads, deepest, 1) for c in order}
        pair = [opened[checkout] for checkout in checkouts]
        for depth in args.depths:
            for name, rows, runs in (("decode", 1, 4), ("prefill", args.prompt, 1)):
                ratio = _ratio(pair, args.rounds, (1, rows, depth, runs))
                found.setdefault(f"{name} at {depth}", []).append(ratio)
        for checkout in pair:
            checkout.close()
    return {
        name: [round(f(ratios), 3) for f in (statistics.median, min, max)]
        for name, ratios in found.items()
    }


def _ratio(pair: Sequence[Checkout], rounds: int, what: Sequence[int]) -> float:
    """Return the median of old time / new time; the checkouts take turns at the start."""
    ratios = []
    for i in range(-1, rounds):  # the first round warms up
        old, new = (
            (c.seconds(*what) for c in pair)
            if i % 2
            else reversed([c.seconds(*what) for c in reversed(pair)])
        )
        ratios.append(old / new)
    return statistics.median(ratios[1:])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Rows of several sequences in one run.")
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--depth", type=int, default=512)
    parser.add_argument("--old", type=Path, help="another checkout, with libraries built")
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 4096, 16000])
    parser.add_argument("--processes", type=int, default=5, help="pairs of processes, with --old")
    parser.add_argument("--prompt", type=int, default=128, help="rows of a prefill")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    for path in args.models:
        row = {"model": path.name} | (against(path, args) if args.old else together(path, args))
        if args.json:
            print(json.dumps(row), flush=True)
        else:
            print(*(f"{key}: {value}" for key, value in row.items()), sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
