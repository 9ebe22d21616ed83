"""Say what verification adds to a decoded token in `sample` mode, in percent.

    python bench/verification.py --models models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf

One check in a hundred products is lost in the noise of a token, so the parts are measured apart.
What checks cost in C: each op's shortest time of all rounds where every product is checked, less
its shortest where none is, times the share of products that `sample` checks.  What choosing costs
in Python: the time of a token outside C in `sample` mode, less that with verification off, the
median of pairs.  Tokens of the three modes take turns, so a busy machine slows all alike.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import npurt
from npurt.runtime.verify import SAMPLE

MODES = ("off", "sample", "always")
CONTEXT = 8  # tokens before the one that is measured


def token(llm: npurt.Llama) -> tuple[list[float], float]:
    """Decode one token; return the seconds of every op in C, and those outside."""
    before = [row.seconds for row in llm.report().rows]
    start = time.perf_counter()
    llm.eval_last([100])
    total = time.perf_counter() - start
    after = [row.seconds for row in llm.report().rows]
    llm.rewind(CONTEXT)
    inside = [b - a for a, b in zip(before, after, strict=True)]
    return inside, total - sum(inside)


def measure(llms: dict[str, npurt.Llama], rounds: int) -> dict[str, float]:
    """Return what `sample` mode adds, in percent of a token's time in C with verification off."""
    least: dict[str, list[float]] = {}
    outside: dict[str, list[float]] = {mode: [] for mode in llms}
    for _ in range(rounds):
        for mode, llm in llms.items():
            inside, rest = token(llm)
            least[mode] = list(map(min, least.get(mode, inside), inside))
            outside[mode].append(rest)
    step = sum(least["off"])
    checks = SAMPLE * (sum(least["always"]) - step)
    pairs = zip(outside["sample"], outside["off"], strict=True)
    choosing = statistics.median(sample - off for sample, off in pairs)
    return {"checks": 100 * checks / step, "choosing": 100 * choosing / step}


def row_of(model: Path, threads: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Return the parts and their sum in percent, each as [least, median, most] of the repeats."""
    llms = {m: npurt.Llama(model, n_ctx=64, n_threads=threads, verify=m) for m in MODES}
    for llm in llms.values():
        llm.eval_last([1] * CONTEXT)
        token(llm)  # the first product of each kind is checked in any case
    repeated = [measure(llms, rounds) for _ in range(repeats)]
    for llm in llms.values():
        llm.close()
    parts = {part: sorted(r[part] for r in repeated) for part in repeated[0]}
    parts["both"] = sorted(sum(r.values()) for r in repeated)
    percent = {part: [v[0], statistics.median(v), v[-1]] for part, v in parts.items()}
    return {"model": model.name, "percent": percent}


def main() -> None:
    parser = argparse.ArgumentParser(description="What verification adds to a decoded token.")
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60, help="tokens of each mode a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [row_of(m, args.threads, args.rounds, args.repeats) for m in args.models]
    if args.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['model']}: percent of a token, median [least-most]")
        for part, (low, middle, high) in row["percent"].items():
            print(f"  {part:10}{middle:6.2f} [{low:.2f}-{high:.2f}]")


if __name__ == "__main__":
    main()
