"""Compare this checkout with another one: time to open a model, prefill and decode.

    python bench/against.py ../old --models models/*.gguf

Each checkout runs in processes of its own. Every opening has a new process. For prefill and decode
each round starts a new process of each checkout, and the two take turns in short bursts, so that
other load on the machine affects both. Processes are new because the placement of a process's
memory makes all its tokens up to 8 % faster or slower. A figure is the median of the ratios of
neighbouring measurements, with their quartiles; for prefill and decode, a measurement is the median
of a process. Build both checkouts first (`python -m tools.build`).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]

OPEN = """
import sys, time
start = time.perf_counter()
import npurt
model = npurt.Llama(sys.argv[1], "cpu", n_ctx=1024, n_threads=int(sys.argv[2]), progress=False)
print(time.perf_counter() - start, time.process_time())
"""

SERVE = """
import sys, time, npurt
path, threads, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = npurt.Llama(path, "cpu", n_ctx=1024, n_threads=threads, progress=False)
ids = [(37 * i) % 20000 + 100 for i in range(rows)]
print("open", flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    if line.strip() == "prefill":
        model.reset()
        model.eval_last(ids)
    else:
        if model.n_tokens > 900:
            model.rewind(rows)
            start = time.perf_counter()
        for i in range(8):
            model.eval_last([ids[i]])
    print(time.perf_counter() - start, flush=True)
"""


def environment(tree: Path) -> dict[str, str]:
    """Return the environment of a process that imports npurt from *tree* and writes bytecode."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**variables, "PYTHONPATH": str(tree)}


def ratios(new: list[float], old: list[float]) -> dict[str, float]:
    """Return median and quartiles of new / old, and the ratio of the least times."""
    each = sorted(n / o for n, o in zip(new, old, strict=True))
    low, middle, high = statistics.quantiles(each, n=4)
    return {"median": middle, "low": low, "high": high, "fastest": min(new) / min(old)}


def opening(trees: list[Path], model: str, threads: int, rounds: int) -> dict[str, Any]:
    """Return ratios of elapsed and CPU seconds to import npurt and open a model."""
    found: list[list[list[float]]] = [[], []]
    for round_ in range(rounds + 1):  # the first one warms up
        for i in (0, 1) if round_ % 2 else (1, 0):
            out = subprocess.run(
                [sys.executable, "-c", OPEN, model, str(threads)],
                env=environment(trees[i]), cwd=trees[i], capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            if round_:
                found[i].append([float(x) for x in out.split()])
    new, old = ([*zip(*each, strict=True)] for each in found)
    return {
        what: ratios(list(n), list(o))
        for what, n, o in zip(("open", "open cpu"), new, old, strict=True)
    }


def running(trees: list[Path], model: str, threads: int, rounds: int) -> dict[str, Any]:
    """Return ratios of the seconds of prefill and of decode."""
    found: dict[str, list[list[float]]] = {"prefill": [[], []], "decode": [[], []]}
    for round_ in range(rounds):
        order = (0, 1) if round_ % 2 else (1, 0)
        for what, each in one_round([trees[i] for i in order], model, threads).items():
            for i, seconds in zip(order, each, strict=True):
                found[what][i].append(statistics.median(seconds))
    return {what: ratios(*each) for what, each in found.items()}


def one_round(trees: list[Path], model: str, threads: int) -> dict[str, list[list[float]]]:
    """Run one process of each of *trees*; return the seconds of its prefills and decodes."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SERVE, model, str(threads), "256"],
            env=environment(tree), cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )
        for tree in trees
    ]  # fmt: skip
    try:
        for worker in workers:
            answer(worker)
        return {
            what: [[*each[1:]] for each in zip(
                *([float(answer(worker, what)) for worker in workers] for _ in range(1 + times)),
                strict=True,
            )]  # the first one warms up
            for what, times in {"prefill": 3, "decode": 6}.items()
        }  # fmt: skip
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def answer(worker: Any, command: str = "") -> str:
    """Send *command* to *worker*; return the line that it answers."""
    if command:
        worker.stdin.write(command + "\n")
        worker.stdin.flush()
    line: str = worker.stdout.readline()
    if not line:
        sys.exit("a process ended; see its error above")
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old", type=Path, help="the other checkout")
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    trees = [HERE, given.old.resolve()]
    for name in given.models:
        model = str(Path(name).resolve())
        found = opening(trees, model, given.threads, given.rounds)
        found |= running(trees, model, given.threads, given.rounds)
        if given.json:
            print(json.dumps({"model": Path(name).name, **found}), flush=True)
            continue
        print(Path(name).name)
        for what, ratio in found.items():
            print(
                f"  {what:9} this / other: {ratio['median']:.3f} "
                f"({ratio['low']:.3f} to {ratio['high']:.3f}), fastest {ratio['fastest']:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
