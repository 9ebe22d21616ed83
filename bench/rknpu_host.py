"""The host's own time for a decoded token on the RK3588: rounding, submitting, scaling.

    python bench/rknpu_host.py --models models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf

CPU time of the thread that decodes, without what it spends inside the simulated driver, and without
what the CPU device does between the products.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import npurt
from npurt.rknpu import system


class Timed(system.Simulator):
    """Adds up what is spent inside the driver."""

    inside = 0.0

    def make(self, calls: system.Calls) -> int | None:
        start = time.thread_time()
        left = super().make(calls)
        Timed.inside += time.thread_time() - start
        return left


def main() -> None:
    parser = argparse.ArgumentParser(description="Host time of a decoded token.")
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--device", default="rknpu:sim-vendor")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    system.Simulator = Timed  # type: ignore[misc]
    import npurt.rknpu.device as device_module

    device_module.Simulator = Timed  # type: ignore[misc]
    rows = []
    for model in args.models:
        with npurt.Llama(model, args.device, n_ctx=256, verify="off") as llm:
            spent = 0.0
            inner = llm.device.matmuls

            def matmuls(*operands: Any, inner: Any = inner) -> None:
                nonlocal spent
                before, start = Timed.inside, time.thread_time()
                inner(*operands)
                spent += time.thread_time() - start - (Timed.inside - before)

            llm.device.matmuls = matmuls  # type: ignore[method-assign]
            llm.eval_last([1, 2, 3])
            llm.eval_last([4])  # prepares the products of one row
            samples = []
            for token in range(args.tokens):
                spent = 0.0
                llm.eval_last([10 + token])
                samples.append(1e3 * spent)
        rows.append({"model": model.name, "milliseconds": statistics.median(samples),
                     "least": min(samples), "most": max(samples)})  # fmt: skip
    if args.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['model']}: {row['milliseconds']:.2f} ms a token on the host "
              f"[{row['least']:.2f}-{row['most']:.2f}]")  # fmt: skip


if __name__ == "__main__":
    main()
