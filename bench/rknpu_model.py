"""Estimate the speed of language models on the RK3588 with the cost model, from npurt's own plans.

    python bench/rknpu_model.py --models models/*.gguf

No time here was measured on an NPU. The cost model (npurt/rknpu/plan/cost.py) is fitted to
published measurements (tests/rknpu/measurements.py). It is applied to every task of every product
of a prompt or a token, as npurt plans them: tensors with two passes have twice the rows, the output
matrix has one row, and each job has a submit. The host's rates were measured on another machine
with bench/rknpu_host.py. `--simulate` also runs one token on the simulator, which counts bytes,
tasks and submits independently.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import npurt
from npurt.llm.arch.reading import Description, describe
from npurt.llm.file.gguf import GGUF
from npurt.llm.measure.estimate import WeightEstimate, estimates
from npurt.llm.measure.speed import speeds, work
from npurt.rknpu.device.estimate import jobs
from npurt.rknpu.device.estimator import RknpuEstimator, RknpuRounding
from npurt.rknpu.driver.system import SimulatedKernel
from npurt.rknpu.plan import cost


def described(path: Path) -> Description:
    """Return the description in a model file."""
    with GGUF(path) as file:
        return describe(file)


def rounded(path: Path) -> list[WeightEstimate]:
    """Return the estimates of the weights of a model file on an RK3588."""
    return list(estimates(path, RknpuRounding()))


def counts(path: Path, rows: list[Any]) -> dict[str, Any]:
    """Return bytes, tasks and jobs of one token; both drivers have the same."""
    moved, weights, tasks, submits = 0, 0, 0, 0
    step = work(described(path).config, rows, every=True)
    for together, _, times in jobs(step.weights, 1):
        submits += times
        for each in together:
            found = cost.count(each)
            moved += times * found.moved
            tasks += times * found.tasks
            weights += times * sum(map(each.weights.image_bytes, range(len(each.tiles))))
    return {"bytes": moved, "per_weight_byte": moved / weights, "tasks": tasks, "jobs": submits}


def simulated(path: Path, driver: str) -> dict[str, Any]:
    """Return the simulator's counts for one token."""
    device = {"rknpu": "rknpu:sim-vendor", "rocket": "rknpu:sim"}[driver]
    simulator = SimulatedKernel()
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


def measure(path: Path, *, simulate: bool) -> dict[str, Any]:
    rows = rounded(path)
    rates = speeds(described(path).config, rows, RknpuEstimator())
    told: dict[str, Any] = {"model": path.name, "rates": [each.as_json() for each in rates]}
    told["token"] = counts(path, rows)
    if simulate:
        told["simulated"] = {driver: simulated(path, driver) for driver in cost.CLOCKS}
    return told


def text(told: dict[str, Any]) -> str:
    token = told["token"]
    lines = [
        f"{told['model']}: a token moves {token['per_weight_byte']:.3f} bytes per weight byte, "
        f"in {token['tasks']} tasks and {token['jobs']} jobs"
    ]
    for row in told["rates"]:
        both = row["prompt"], row["decode"]
        prompt, decode = (" / ".join(f"{rate:.3g}" for rate in rates) for rates in both)
        lines.append(
            f"    {row['driver']} at {row['mhz']:.0f} MHz, tokens/s, least / expected / most: "
            f"prompt of {row['prompt_tokens']} {prompt}; decode {decode}"
        )
    if "simulated" in told:
        lines.append(f"    planned {token['bytes']} bytes; simulated: {told['simulated']}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What to expect on the RK3588, by a model.")
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--simulate", action="store_true", help="also run a token on the simulator")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [measure(model, simulate=args.simulate) for model in args.models]
    if args.json:
        print(json.dumps(rows))
        return
    print("estimates of a model; nothing was run on an NPU")
    for row in rows:
        print(text(row))


if __name__ == "__main__":
    main()
