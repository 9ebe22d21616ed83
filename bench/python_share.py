"""Measure the share of a decoded token's time that is spent outside the C kernels.

    python bench/python_share.py --models models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf

Decodes with verification off. The ledger gives the time inside C; the rest of a token's time is
Python, numpy and sampling.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import npurt


def seconds_in_c(llm: npurt.Llama) -> float:
    return sum(row.seconds for row in llm.report().rows)


def decode(llm: npurt.Llama, tokens: int) -> tuple[float, float]:
    """Return seconds per token, and the share of this time outside C."""
    llm.reset()
    llm.eval_last([1] * 8)
    inside, start = seconds_in_c(llm), time.perf_counter()
    for token in range(tokens):
        llm.eval_last([100 + token])
    total = time.perf_counter() - start
    return total / tokens, 1 - (seconds_in_c(llm) - inside) / total


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of a decoded token outside C.")
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for model in args.models:
        with npurt.Llama(model, n_ctx=1024, n_threads=args.threads, verify="off") as llm:
            rounds = [decode(llm, args.tokens) for _ in range(args.rounds)]
        rows.append({
            "model": model.name,
            "milliseconds_per_token": 1e3 * statistics.median(total for total, _ in rounds),
            "outside_c_percent": 100 * statistics.median(share for _, share in rounds),
        })  # fmt: skip
    if args.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("  ".join(f"{k} {v if isinstance(v, str) else f'{v:.1f}'}" for k, v in row.items()))


if __name__ == "__main__":
    main()
