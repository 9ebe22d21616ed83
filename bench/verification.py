"""Measure what verification in `sample` mode adds to a decoded token in percent, or to a `matmul`.

    python bench/verification.py --models models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf
    python bench/verification.py --matmul [--device cpu]

The noise of a token's time hides one check per hundred products, so the two parts are measured
apart. The cost of checks in C is the difference of each op's shortest times with every product
checked and with none, times the share of products that `sample` checks. The cost of choosing
products in Python is the median difference of a token's time outside C in `sample` mode and with
verification off. Tokens of the three modes take turns, so that other load affects all alike.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import npurt
from npurt.device.device import F32
from npurt.device.verify import SAMPLE

MODES = ("off", "sample", "always")
CONTEXT = 8  # tokens in the cache before the measured one


def token(llm: npurt.Llama) -> tuple[list[float], float]:
    """Decode one token; return the seconds of every op in C, and the seconds outside C."""
    before = [row.seconds for row in llm.report().rows]
    start = time.perf_counter()
    llm.eval_last([100])
    total = time.perf_counter() - start
    after = [row.seconds for row in llm.report().rows]
    llm.rewind(CONTEXT)
    inside = [b - a for a, b in zip(before, after, strict=True)]
    return inside, total - sum(inside)


def measure(llms: dict[str, npurt.Llama], rounds: int) -> dict[str, float]:
    """Return what `sample` mode adds, in percent of a token's time in C when it is off."""
    minimum: dict[str, list[float]] = {}
    outside: dict[str, list[float]] = {mode: [] for mode in llms}
    for _ in range(rounds):
        for mode, llm in llms.items():
            inside, rest = token(llm)
            minimum[mode] = list(map(min, minimum.get(mode, inside), inside))
            outside[mode].append(rest)
    step = sum(minimum["off"])
    checks = SAMPLE * (sum(minimum["always"]) - step)
    pairs = zip(outside["sample"], outside["off"], strict=True)
    choosing = statistics.median(sample - off for sample, off in pairs)
    return {"checks": 100 * checks / step, "choosing": 100 * choosing / step}


def row_of(model: Path, threads: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Return both parts and their sum in percent: [minimum, median, maximum] of the repeats."""
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


def seconds_of(x: F32, w: npurt.PackedWeight, how: str) -> float:
    """Return the seconds of one product with the verification mode *how*."""
    start = time.perf_counter()
    npurt.matmul(x, w, verify=how)
    return time.perf_counter() - start


def matmul_row(m: int, k: int, n: int, kind: str, device: str, rounds: int) -> dict[str, Any]:
    """Return ms of packing, of the first product, and the least of later ones in each mode.

    `sample` is the mean over 99 unchecked products and a checked one.
    """
    rng = np.random.default_rng(0)
    b, x = (rng.standard_normal(shape, dtype=np.float32) for shape in ((k, n), (m, k)))
    start = time.perf_counter()
    w = npurt.pack(b, kind, device=device)
    packing = time.perf_counter() - start
    seconds_of(x, w, "off")
    first = seconds_of(x, w, "sample")
    minimum = {how: min(seconds_of(x, w, how) for _ in range(3)) for how in ("off", "always")}
    for _ in range(rounds):
        for how in minimum:
            minimum[how] = min(minimum[how], seconds_of(x, w, how))
    minimum["sample"] = minimum["off"] + SAMPLE * (minimum["always"] - minimum["off"])
    times = {"pack": packing, "first": first, **minimum}
    return {"m": m, "k": k, "n": n, "type": kind} | {key: 1e3 * s for key, s in times.items()}


def print_matmuls(device: str, rounds: int, as_json: bool) -> None:
    """Measure products of 1 and 64 rows with small and large weights, and print the table."""
    shapes = [(m, k, n) for k, n in ((64, 64), (896, 4864), (1536, 8960)) for m in (1, 64)]
    rows = [matmul_row(*shape, "q4_0", device, rounds) for shape in shapes]
    if as_json:
        print(json.dumps(rows))
        return
    print("ms: M x K x N, pack; first product; not verified, sample, always")
    for row in rows:
        shape = f"{row['m']:3} x {row['k']} x {row['n']}"
        others = " ".join(f"{row[how]:.4f}" for how in ("off", "sample", "always"))
        print(f"{shape}: {row['pack']:.1f}; {row['first']:.2f}; {others}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What verification adds to a decoded token.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--models", type=Path, nargs="+")
    what.add_argument("--matmul", action="store_true", help="measure npurt.matmul instead")
    parser.add_argument("--device", default="cpu", help="device of npurt.matmul")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60, help="tokens of each mode per repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.matmul:
        print_matmuls(args.device, args.rounds, args.json)
        return
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
