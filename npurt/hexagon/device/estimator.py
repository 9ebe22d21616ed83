"""Estimate the speed of a model on a Hexagon with a cost model, without measurement."""

from collections.abc import Iterator, Sequence
from typing import Any

from npurt.backend.estimates import Estimate, EstimatedBoard, ModelWeight, ModelWork
from npurt.backend.host_cost import HOST, HostSpeed, host_product_seconds
from npurt.device.device import MAX_ROWS, MatMul
from npurt.hexagon.device.weights import why_not
from npurt.hexagon.layout import formats
from npurt.hexagon.layout.images import image_bytes
from npurt.hexagon.plan.cost import Q6A, Speed, call_seconds
from npurt.hexagon.plan.packets import BATCH, product

ARCH = 68  # the oldest Hexagon version for which npurt has a skel


class DragonQ6A:
    """The board of the cost model; its own host, four Cortex-A78, was never measured."""

    board = Q6A

    @property
    def title(self) -> str:
        """The board's name, with the version, the threads and the clock of its DSP."""
        dsp = self.board
        mhz = dsp.clock_hz / 1e6
        return f"Hexagon v{dsp.arch} of a {dsp.name}, {dsp.threads} threads at {mhz:.0f} MHz"

    @property
    def facts(self) -> dict[str, Any]:
        """The parts of the title."""
        dsp = self.board
        mhz = dsp.clock_hz / 1e6
        return {"board": dsp.name, "arch": dsp.arch, "mhz": mhz, "threads": dsp.threads}

    def seconds(self, work: ModelWork, tokens: int) -> Estimate[float]:
        """Return the time of a run of *tokens*; the host computes ops without a kernel."""
        calls = list(jobs(work.weights, tokens))
        found = []
        for speed, host in zip(self.board.speeds, HOST, strict=True):
            other = work.layers * host.layer_s + tokens * work.units * host.unit_s
            found.append(other + sum(times * _seconds(ops, speed, host) for ops, times in calls))
        return Estimate(*found)


class HexagonEstimator:
    """The cost model of a Hexagon."""

    title = f"hexagon (v{ARCH})"
    note = "a Hexagon also computes delta nets"
    boards: Sequence[EstimatedBoard] = (DragonQ6A(),)

    def why_not(self, op: MatMul) -> str | None:
        """Return None if the oldest supported Hexagon can compute *op*, else the reason."""
        return why_not(op, ARCH)

    def weight_bytes(self, op: MatMul) -> int:
        """Return the bytes of the weight's image."""
        return image_bytes(formats.BY_NAME[op.format], op.n, op.k)


def jobs(weights: Sequence[ModelWeight], tokens: int) -> Iterator[tuple[list[MatMul], int]]:
    """Yield the products of each call in a run of *tokens*, and the number of such calls."""
    calls: dict[str, list[ModelWeight]] = {}
    for weight in weights:
        calls.setdefault(weight.call, []).append(weight)
    for call in calls.values():
        rows, times = call[0].rows(tokens)
        for start in range(0, rows, MAX_ROWS):
            m = min(rows - start, MAX_ROWS)
            yield [MatMul(m, each.k, each.n, each.scheme) for each in call], times


def packets(weights: Sequence[ModelWeight], tokens: int, arch: int, threads: int) -> float:
    """Return the packets of a run of *tokens* on v*arch*."""
    total = 0.0
    for ops, times in jobs(weights, tokens):
        there = [op for op in ops if why_not(op, arch) is None]
        costs = [product(op, arch, threads, same_x=i > 0) for i, op in enumerate(there)]
        total += times * (bool(there) * BATCH + sum(c.quantise + c.multiply for c in costs))
    return total


def _seconds(ops: Sequence[MatMul], speed: Speed, host: HostSpeed) -> float:
    """Return the seconds of a call with *ops*."""
    there = [op for op in ops if why_not(op, Q6A.arch) is None]
    total = sum(host_product_seconds(op) for op in ops if op not in there)
    if there:
        synced = 4 * ops[0].m * (ops[0].k + sum(op.n for op in there))
        total += call_seconds(there, Q6A, speed) + synced / host.sync_bytes_s
    return total
