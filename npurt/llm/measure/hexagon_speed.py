"""Estimate the speed of a model on a Hexagon, by a cost model and not by measurement."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from npurt.device import MAX_ROWS, MatMul
from npurt.hexagon.device.weights import why_not
from npurt.hexagon.plan.cost import Q6A as BOARD
from npurt.hexagon.plan.cost import Speed, call_seconds
from npurt.hexagon.plan.packets import BATCH, product
from npurt.llm.file.config import Config
from npurt.llm.measure.estimate import WeightEstimate
from npurt.llm.measure.speed import PROMPT, matrices, units
from npurt.rknpu.device.estimate import Weight, host_product_seconds
from npurt.rknpu.plan import cost as rk3588

# The host's work that is no product, and cache maintenance: the rates of an RK3588's host.  This
# board's four Cortex-A78 were never measured.
HOST = rk3588.SPEEDS["rknpu"]


@dataclass(frozen=True, slots=True)
class HexagonRates:
    """Tokens a second on a board: the least, the expected and the most."""

    board: str
    arch: int
    mhz: float
    threads: int
    prompt_tokens: int
    prompt: tuple[float, float, float]
    decode: tuple[float, float, float]


def hexagon_speed(config: Config, estimates: Sequence[WeightEstimate]) -> HexagonRates:
    """Return the expected speed of a model on the board; *estimates* are of its weights."""
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
    """Return the tokens a second of a run of *tokens*: the least, the expected and the most.

    Args:
        config: Of the model.
        estimates: Of its weights.
        tokens: Of one text, or of texts that are decoded together.
        every: Logits are wanted of every token, not only of the last.
    """
    jobs = list(hexagon_jobs(config, estimates, tokens, every=every))
    seconds = []
    for speed, host in zip(BOARD.speeds, HOST, strict=True):
        other = config.n_layers * host.layer_s + tokens * units(config) * host.unit_s
        products = sum(times * _seconds(ops, speed, host) for ops, times in jobs)
        seconds.append(other + products)
    most, expected, least = (tokens / each for each in seconds)
    return least, expected, most


def hexagon_jobs(
    config: Config, estimates: Sequence[WeightEstimate], tokens: int, *, every: bool = False
) -> Iterator[tuple[list[MatMul], int]]:
    """Yield the products of each call of a run of *tokens*, and how often it is made."""
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
    """Return the packets of a run of *tokens* that wants the logits of all, on v*arch*."""
    total = 0.0
    for ops, times in hexagon_jobs(config, estimates, tokens, every=True):
        there = [op for op in ops if why_not(op, arch) is None]
        costs = [product(op, arch, threads, same_x=i > 0) for i, op in enumerate(there)]
        total += times * (bool(there) * BATCH + sum(c.quantise + c.multiply for c in costs))
    return total


def _seconds(ops: Sequence[MatMul], speed: Speed, host: rk3588.Speed) -> float:
    """Return how long a call with *ops* takes; the host has those without a kernel."""
    there = [op for op in ops if why_not(op, BOARD.arch) is None]
    total = sum(host_product_seconds(op) for op in ops if op not in there)
    if there:
        synced = 4 * ops[0].m * (ops[0].k + sum(op.n for op in there))
        total += call_seconds(there, BOARD, speed) + synced / host.sync_bytes_s
    return total
