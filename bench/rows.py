"""Compare the time to evaluate several rows at once with that of one: the cost of verifying drafts.

    python bench/rows.py --models models/Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf --threads 2

Batches of 1 to 8 tokens take turns at one position of the context. For each op the shortest time of
all rounds counts, from the ledger, so that other load affects all sizes alike; a pass ("all") is
the sum of its ops. If the memory's speed varies, the shortest times of different sizes may come
from moments of different speed. The last line therefore has medians of whole passes and of the
ratios within a round. Times in Python are not included.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import npurt

CONTEXT = 128  # tokens in the cache before the batch


def seconds(llm: npurt.Llama) -> list[float]:
    """Return the total seconds of every op."""
    return [row.seconds for row in llm.report().rows]


def measure(
    path: Path, threads: int, sizes: Sequence[int], rounds: int
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Return milliseconds by op class, and milliseconds of all whole passes, by number of rows."""
    with npurt.Llama(path, n_ctx=1024, n_threads=threads, verify="off") as llm:
        llm.eval_last([100 + i for i in range(CONTEXT)])
        minimum: dict[int, list[float]] = {}
        passes: dict[str, list[float]] = {str(size): [] for size in sizes}
        for _ in range(rounds):
            for size in sizes:
                before = seconds(llm)
                llm.eval([200 + i for i in range(size)])
                took = [b - a for a, b in zip(before, seconds(llm), strict=True)]
                minimum[size] = list(map(min, minimum.get(size, took), took))
                passes[str(size)].append(1e3 * sum(took))
                llm.rewind(CONTEXT)
        ops = [row.op for row in llm.report().rows]
    table = {
        str(size): {op: 1e3 * sum(t for o, t in zip(ops, times, strict=True) if o == op)
                    for op in dict.fromkeys(ops)}
        for size, times in minimum.items()
    }  # fmt: skip
    return table, passes


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of several rows at once, over one.")
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=list(range(1, 9)))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for model in args.models:
        table, passes = measure(model, args.threads, args.rows, args.rounds)
        if args.json:
            print(json.dumps({"model": model.name, "milliseconds": table, "passes": passes}))
            continue
        first = table[str(args.rows[0])]
        print(f"{model.name}, {args.threads} threads: ms, and the ratio to {args.rows[0]} rows")
        print("rows      " + "".join(f"{size:>14}" for size in table))
        for op in (*first, "all"):
            cells = [sum(t.values()) if op == "all" else t[op] for t in table.values()]
            print(f"{op:10}" + "".join(f"{c:8.2f} {c / cells[0]:5.2f}" for c in cells))
        one = passes[str(args.rows[0])]
        medians = (
            (statistics.median(p), statistics.median(b / a for a, b in zip(one, p, strict=True)))
            for p in passes.values()
        )
        print("median    " + "".join(f"{time:8.2f} {ratio:5.2f}" for time, ratio in medians))


if __name__ == "__main__":
    main()
