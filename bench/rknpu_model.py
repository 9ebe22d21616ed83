"""Model time of language models on the RK3588: an estimate from the plans that are really run.

    python bench/rknpu_model.py --models models/*.gguf

Nothing here was timed on an NPU.  The published cost model (npurt/rknpu/cost.py) is applied to
every task of every product of a prompt or a token, as npurt cuts them: tensors with two passes
have twice the rows, the output matrix one row, and each job its submit.  What the host does is not
in it; see bench/rknpu_host.py.  `--simulate` runs one token on the simulator as well, which counts
bytes, tasks and submits by itself.
"""

import argparse
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import npurt
from npurt.llm.price import Price, prices
from npurt.rknpu import cost
from npurt.rknpu.forms import form
from npurt.rknpu.layout import Layout
from npurt.rknpu.numerics import BY_NAME, cuts
from npurt.rknpu.plan import Plan, plan, plan_weights
from npurt.rknpu.system import Simulator

TOGETHER = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"))  # share an input
OUTPUT = ("output", "token_embd")
PEAK = ("128x1024x8192 int8, one core", 128, 1024, 8192)
CHAINED = {"rknpu": True, "rocket": False}


def group_of(name: str) -> tuple[str, int]:
    """Return the block of a tensor and which group of products it is in."""
    block, _, kind = name.removesuffix(".weight").rpartition(".")
    for i, kinds in enumerate(TOGETHER):
        if kind in kinds:
            return block, i
    return f"{block}.{kind}", -1


def jobs(rows: Iterable[Price], tokens: int) -> Iterator[list[Plan]]:
    """Yield the plans of each job for a run of *tokens*, of which the last makes logits."""
    ordered = sorted(rows, key=lambda price: (group_of(price.tensor), price.form))
    for _, alike in itertools.groupby(ordered, lambda p: (group_of(p.tensor), p.form)):
        yield [each for price in alike for each in plans(price, tokens)]


def plans(price: Price, tokens: int) -> Iterator[Plan]:
    """Yield the plan of each part of K of one weight."""
    n, k = price.shape
    scheme = BY_NAME[price.form]
    head = price.tensor.removesuffix(".weight") in OUTPUT
    for columns in cuts(k, scheme.group):
        weights = plan_weights(form(scheme.task), n, columns.stop - columns.start)
        yield plan(weights, scheme.passes * (1 if head else tokens), Layout.ROW)


def forecast(rows: list[Price], tokens: int, driver: str) -> dict[str, Any]:
    """Return seconds, bytes, tasks and submits of a run of *tokens*."""
    seconds, moved, weights, tasks, submits = 0.0, 0, 0, 0, 0
    for together in jobs(rows, tokens):
        seconds += max(cost.core_seconds(together, chained=CHAINED[driver]))
        seconds += cost.SUBMIT_S[driver]
        submits += 1
        for each in together:
            estimate = cost.estimate(each, chained=CHAINED[driver])
            moved += estimate.moved
            tasks += estimate.tasks
            weights += sum(each.weights.image_bytes(core) for core in range(len(each.tiles)))
    return {
        "tokens_per_second": tokens / seconds,
        "milliseconds": 1e3 * seconds,
        "bytes": moved,
        "bytes_per_weight_byte": moved / weights,
        "tasks": tasks,
        "jobs": submits,
    }


def peak(driver: str) -> dict[str, Any]:
    """Return the share of the MAC array's peak that one large product reaches."""
    name, m, k, n = PEAK
    product = plan(plan_weights(form("int8"), n, k, cores=1, rows=m), m, Layout.ROW)
    ideal = m * k * n / cost.mac_rate(form("int8")) / cost.CLOCK_HZ
    (seconds,) = cost.core_seconds([product], chained=CHAINED[driver])
    return {
        "product": name,
        "tasks": sum(map(len, product.tiles)),
        "utilisation": ideal / seconds,
        "utilisation_with_submit": ideal / (seconds + cost.SUBMIT_S[driver]),
    }


def simulated(path: Path, driver: str) -> dict[str, Any]:
    """Return what the simulator counts for one token."""
    device = {"rknpu": "rknpu:sim-vendor", "rocket": "rknpu:sim"}[driver]
    simulator = Simulator()
    with npurt.Llama(path, device, n_ctx=64, verify="off") as llm:
        llm.eval_last([1])
        simulator.set("counters=0")
        llm.eval_last([2])
        report = simulator.report()
    cores = [core for core in report["cores"] if core["driver"] == driver]
    return {
        "bytes": sum(sum(core["bytes"].values()) for core in cores),
        "tasks": sum(core["tasks"] for core in cores),
        "submits": report["submits"][driver],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Model time on the RK3588.")
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--simulate", action="store_true", help="run a token on the simulator, too")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    told: dict[str, Any] = {"note": "model time; nothing was run on an NPU"}
    told["peak"] = {driver: peak(driver) for driver in CHAINED}
    told["models"] = []
    for model in args.models:
        rows = list(prices(model))
        for driver in CHAINED:
            row = {"model": model.name, "driver": driver}
            row["prefill"] = forecast(rows, args.prompt, driver)
            row["decode"] = forecast(rows, 1, driver)
            if args.simulate:
                row["simulated"] = simulated(model, driver)
            told["models"].append(row)
    print(json.dumps(told) if args.json else text(told, args.prompt))


def text(told: dict[str, Any], prompt: int) -> str:
    lines = [told["note"]]
    for driver, row in told["peak"].items():
        lines.append(
            f"{driver}: {row['product']}: {100 * row['utilisation']:.1f} % of the MAC array's peak "
            f"in {row['tasks']} tasks, {100 * row['utilisation_with_submit']:.1f} % with the submit"
        )
    for row in told["models"]:
        prefill, decode = row["prefill"], row["decode"]
        lines.append(
            f"{row['driver']}, {row['model']}: prefill of {prompt} "
            f"{prefill['tokens_per_second']:.0f} tokens/s ({prefill['milliseconds']:.0f} ms, "
            f"{prefill['tasks']} tasks, {prefill['jobs']} jobs); "
            f"decode {decode['tokens_per_second']:.1f} tokens/s, "
            f"{decode['bytes_per_weight_byte']:.3f} bytes moved per weight byte, "
            f"{decode['tasks']} tasks in {decode['jobs']} jobs a token"
        )
        if "simulated" in row:
            lines.append(f"    planned {decode['bytes']} bytes; simulated: {row['simulated']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
