"""Count the work of an NPU that decodes several sequences together, and estimate its speed.

    python bench/npu_batches.py --models models/SmolLM2-135M-Instruct.Q4_1.gguf

No time here was measured on an NPU. A step has one token of each sequence. The simulators run a
step and count: `hexagon:sim` instruction packets, `rknpu:sim` submits, tasks and bytes; the counts
do not depend on the machine. The output also has the counts of the RK3588's plans, which share no
code with its simulator, and tokens per second by its cost model (npurt/rknpu/plan/cost.py).

For the Hexagon, the output also has the packets by its cost model (npurt/hexagon/plan), and the
tokens per second of a Dragon Q6A by that model.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rknpu_model import described, rounded
from tqdm import tqdm

import npurt
from npurt.backend.estimates import ModelWork
from npurt.hexagon.device.estimator import DragonQ6A, packets
from npurt.llm.measure.estimate import expected
from npurt.llm.measure.speed import rates, work
from npurt.llm.session.context import Context, Piece, run_together
from npurt.rknpu.device.estimate import jobs
from npurt.rknpu.device.estimator import BOARDS
from npurt.rknpu.driver.system import SimulatedKernel
from npurt.rknpu.plan import cost

BOARD = DragonQ6A()
RKNPU = ("rknpu:sim-vendor", "rknpu:sim")
HEXAGON = ("hexagon:sim-v68", "hexagon:sim-v73")
THREADS = 4  # hardware threads of the simulated DSP
N_CTX = 16  # of each sequence; counts of products do not depend on it


class Ledger:
    """Counts of a model's ledger since the last take()."""

    def __init__(self, llm: npurt.Llama) -> None:
        self._llm = llm
        self._before = np.zeros(2, np.int64)

    def take(self) -> dict[str, int]:
        rows = [row for row in self._llm.report().rows if row.macs]
        now = np.array([sum(row.packets for row in rows), sum(row.nbytes for row in rows)])
        (packets, nbytes), self._before = (now - self._before).tolist(), now
        return {"packets": packets, "weight_bytes": nbytes}


class Counters:
    """Counts of the simulated RK3588 since the last take()."""

    def __init__(self, llm: npurt.Llama) -> None:
        self._simulator = SimulatedKernel()

    def take(self) -> dict[str, int]:
        report = self._simulator.report()
        self._simulator.set("counters=0")
        cores = report["cores"]
        return {
            "bytes": sum(sum(core["bytes"].values()) for core in cores),
            "tasks": sum(core["tasks"] for core in cores),
            "submits": sum(report["submits"].values()),
        }


def steps(
    path: Path, device: str, numbers: list[int], counter: type[Ledger] | type[Counters]
) -> Iterator[dict[str, int]]:
    """Yield the counts of *counter* in a step, for each number of sequences.

    The first step of each number prepares its products and is not counted.
    """
    maximum = max(numbers)
    with npurt.Llama(
        path, device, n_ctx=N_CTX, n_batch=max(maximum, 16), max_sequences=maximum + 1,
        verify="off", progress=False,
    ) as llm:  # fmt: skip
        out = np.empty((maximum, llm.config.n_vocab), np.float32)
        texts = [Context(llm.model) for _ in range(maximum)]
        counts = counter(llm)
        for number in numbers:
            for token in (100, 200):
                counts.take()
                pieces = [Piece(text, [token + i], 1) for i, text in enumerate(texts[:number])]
                if not run_together(pieces, out):
                    sys.exit(f"{device} was lost")
            yield counts.take()


def planned(step: ModelWork, number: int) -> dict[str, int]:
    """Return a step's planned counts. A job is one submit with rknpu, one per core with rocket."""
    found = {"bytes": 0, "tasks": 0, "jobs": 0}
    for plans, _, times in jobs(step.weights, number):
        found["jobs"] += times
        for each in map(cost.count, plans):
            found["bytes"] += times * each.moved
            found["tasks"] += times * each.tasks
    return found


def rk3588(path: Path, numbers: list[int], *, simulate: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of sequences."""
    step = work(described(path).config, rounded(path), every=True)
    counted = {device: list(steps(path, device, numbers, Counters)) for device in RKNPU if simulate}
    for i, number in enumerate(numbers):
        together = {
            f"{board.driver} at {board.clock_hz / 1e6:.0f} MHz": rates(board, step, number)
            for board in BOARDS
        }
        simulated = {device: counts[i] for device, counts in counted.items()}
        yield {
            "model": path.name, "texts": number, "planned": planned(step, number),
            "simulated": simulated, "tokens_per_second": together,
        }  # fmt: skip


def hexagon(path: Path, numbers: list[int], device: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of sequences; only the board's version has tokens per second."""
    model, arch = described(path), int(device[-2:])
    rows = expected(model.graph(model.config.n_context), None)
    step = work(model.config, rows, every=True)
    for number, each in zip(numbers, steps(path, device, numbers, Ledger), strict=True):
        row = {
            "model": path.name, "texts": number, "device": device, **each,
            "planned_packets": round(packets(step.weights, number, arch, THREADS)),
        }  # fmt: skip
        if arch == BOARD.board.arch:
            row["tokens_per_second"] = rates(BOARD, step, number)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description="Texts decoded together on an NPU, by a model.")
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--no-simulation", action="store_true", help="only the RK3588's plans")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    told = []
    for path in args.models:
        npus = [("RK3588", rk3588(path, args.texts, simulate=not args.no_simulation))]
        npus += [(d, hexagon(path, args.texts, d)) for d in HEXAGON if not args.no_simulation]
        told += [
            row
            for name, rows in npus
            for row in tqdm(rows, f"{path.name} {name}", len(args.texts), leave=False)
        ]
    if args.json:
        print(json.dumps(told))
        return
    print("estimates of models and simulators; nothing was run on an NPU")
    first: dict[tuple[str, str], Any] = {}
    for row in told:
        one = first.setdefault((row["model"], row.get("device", "")), row)
        print(text_of_hexagon(row, one) if "device" in row else text_of_rk3588(row, one))


def text_of_rk3588(row: dict[str, Any], one: dict[str, Any]) -> str:
    lines = [f"{row['model']} on an RK3588, {row['texts']} texts: planned {row['planned']}"]
    lines += [f"    {device} counted {counts}" for device, counts in row["simulated"].items()]
    for board, speed in row["tokens_per_second"].items():
        times = speed[1] / one["tokens_per_second"][board][1]
        low, expected, high = (f"{rate:.3g}" for rate in speed)
        lines.append(f"    {board}: {low} / {expected} / {high} tokens/s of all ({times:.2f} x)")
    return "\n".join(lines)


def text_of_hexagon(row: dict[str, Any], one: dict[str, Any]) -> str:
    line = (
        f"{row['model']} on {row['device']}, {row['texts']} texts: {row['packets']} packets "
        f"({row['packets'] / one['packets']:.2f} x), planned {row['planned_packets']}, "
        f"{row['weight_bytes']} bytes of weights"
    )
    if "tokens_per_second" in row:
        speed = row["tokens_per_second"]
        times = speed[1] / one["tokens_per_second"][1]
        low, expected, high = (f"{rate:.3g}" for rate in speed)
        line += (
            f"\n    {BOARD.board.name}: {low} / {expected} / {high} tokens/s of all ({times:.2f} x)"
        )
    return line


if __name__ == "__main__":
    main()
