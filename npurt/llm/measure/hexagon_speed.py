"""Estimate the speed of a model on a Hexagon with a cost model, without measurement."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from npurt.device.device import MAX_ROWS, MatMul
from npurt.hexagon.device.weights import why_not
from npurt.hexagon.plan.cost import Q6A as BOARD
from npurt.hexagon.plan.cost import Speed, call_seconds
from npurt.hexagon.plan.packets import BATCH, product
from npurt.llm.file.config import Config
from npurt.llm.measure.estimate import WeightEstimate
from npurt.llm.measure.speed import PROMPT, matrices, units
from npurt.rknpu.device.estimate import Weight, host_product_seconds
from npurt.rknpu.plan import cost as rk3588

# The rates of the host for ops other than products, and for cache maintenance.  They were measured
# on an RK3588's host, because this board's four Cortex-A78 were never measured.
HOST = rk3588.SPEEDS["rknpu"]


@dataclass(frozen=True, slots=True)
class HexagonRates:
    """Tokens per second on a board, each as the lowest, expected and highest rate."""

    board: str
    arch: int
    mhz: float
    threads: int
    prompt_tokens: int
    prompt: tuple[float, float, float]
    decode: tuple[float, float, float]


def hexagon_speed(config: Config, estimates: Sequence[WeightEstimate]) -> HexagonRates:
    """Return the estimated speed of a model on the board, from the estimates of its weights."""
    prompt, decode = (hexagon_rates(config, estimates, n) for n in (PROMPT, 1))
    mhz = BOARD.clock_hz / 1e6
    return HexagonRates(BOARD.name, BOARD.arch, mhz, BOARD.threads, PROMPT, prompt, decode)


def hexagon_rates(
    config: Config,
    estimates: Sequence[WeightEstimate],
    tokens: int,
    *,
    every: bool = False,
) -> tuple[float, float, float]:
    """Return the lowest, expected and highest rate of a run of *tokens*, in tokens per second.

    Args:
        config: The configuration of the model.
        estimates: The estimates of its weights.
        tokens: The number of tokens, of one sequence or of several decoded together.
        every: Whether the logits of every token are computed, or only those of the last.
    """
    jobs = list(hexagon_jobs(config, estimates, tokens, every=every))
    seconds = []
    for speed, host in zip(BOARD.speeds, HOST, strict=True):
        other = config.n_layers * host.layer_s + tokens * units(config) * host.unit_s
        products = sum(times * _seconds(ops, speed, host) for ops, times in jobs)
        seconds.append(other + products)
    maximum, expected, minimum = (tokens / each for each in seconds)
    return minimum, expected, maximum


def hexagon_jobs(
    config: Config, estimates: Sequence[WeightEstimate], tokens: int, *, every: bool = False
) -> Iterator[tuple[list[MatMul], int]]:
    """Yield the products of each call in a run of *tokens*, and the number of such calls."""
    formats = [replace(each, form=each.dtype) for each in estimates]
    calls: dict[str, list[Weight]] = {}
    for weight in matrices(config, formats, every=every):
        calls.setdefault(weight.call, []).append(weight)
    for call in calls.values():
        rows, times = call[0].rows(tokens)
        for start in range(0, rows, MAX_ROWS):
            m = min(rows - start, MAX_ROWS)
            yield [MatMul(m, each.k, each.n, each.scheme) for each in call], times


def hexagon_packets(
    config: Config, estimates: Sequence[WeightEstimate], tokens: int, arch: int, threads: int
) -> float:
    """Return the packets of a run of *tokens* with the logits of every token, on v*arch*."""
    total = 0.0
    for ops, times in hexagon_jobs(config, estimates, tokens, every=True):
        there = [op for op in ops if why_not(op, arch) is None]
        costs = [product(op, arch, threads, same_x=i > 0) for i, op in enumerate(there)]
        total += times * (bool(there) * BATCH + sum(c.quantise + c.multiply for c in costs))
    return total


def _seconds(ops: Sequence[MatMul], speed: Speed, host: rk3588.Speed) -> float:
    """Return the seconds of a call with *ops*; the host computes ops without a kernel."""
    there = [op for op in ops if why_not(op, BOARD.arch) is None]
    total = sum(host_product_seconds(op) for op in ops if op not in there)
    if there:
        synced = 4 * ops[0].m * (ops[0].k + sum(op.n for op in there))
        total += call_seconds(there, BOARD, speed) + synced / host.sync_bytes_s
    return total
