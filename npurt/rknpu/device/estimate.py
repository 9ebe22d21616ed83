"""Estimate the time of a language model on an RK3588: NPU products, and other ops on the host."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npurt.device.device import MAX_ROWS, MatMul, Saving
from npurt.quant import types
from npurt.rknpu.device.needs import weight_plans
from npurt.rknpu.device.quantise import BY_NAME, default_scheme
from npurt.rknpu.isa.formats import number_format
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.plan.cost import Estimate, estimate, host_seconds, npu_seconds
from npurt.rknpu.plan.tiling import CORES, Plan, plan, plan_weights

# Speed of the boards' host, four Cortex-A76, with llama.cpp: 73 tokens/s of a prompt are 146e9
# operations/s [HW: rk-llama, Gemma3-1B Q8_0]; memory: 25.6e9 bytes/s (marfrit/rk-llama.cpp).
CPU_MACS_S = 73e9
CPU_BYTES_S = 25.6e9


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix ``[N, K]`` of a model.

    Attributes:
        scheme: A name in `npurt.rknpu.device.quantise.BY_NAME`.
        call: Weights with the same *call* are multiplied by one x, in one call.
        head: True if only the last token of a run is multiplied by the weight.
        copies: Number of equal weights, such as layers.
        experts: Number of experts, for the weight of an expert.
        used: Number of experts that a token uses.
    """

    n: int
    k: int
    scheme: str
    call: str
    head: bool = False
    copies: int = 1
    experts: int = 1
    used: int = 1

    def rows(self, tokens: int) -> tuple[int, int]:
        """Return the rows of a product in a run of *tokens*, and the number of products.

        The tokens are assumed to use as many different experts as possible.
        """
        if self.head:
            return 1, self.copies
        active = min(self.experts, self.used * tokens)
        return -(-tokens * self.used // active), self.copies * active


def run_seconds(
    weights: Sequence[Weight],
    tokens: int,
    *,
    layers: int,
    units: int,
    driver: str,
    clock_hz: float | None = None,
) -> Estimate[float]:
    """Return the time of a run of *tokens*, including all ops.

    Args:
        weights: All weights of products.
        layers: Number of layers of the model.
        units: Sum over layers of the model's width and the feed-forward width.
        driver: A key of `npurt.rknpu.plan.cost.SPEEDS`.
        clock_hz: The NPU's clock; by default that of the driver.
    """
    total = estimate(driver, lambda speed: layers * speed.layer_s + tokens * units * speed.unit_s)
    for job, passes, times in jobs(weights, tokens):
        npu = npu_seconds(job, driver, clock_hz)
        host = host_seconds(job, passes, driver)
        sums = [t + times * (a + b) for t, a, b in zip(total, npu, host, strict=True)]
        total = Estimate(*sums)
    return total


def jobs(weights: Sequence[Weight], tokens: int) -> Iterator[tuple[list[Plan], int, int]]:
    """Yield each job's plans, the rows of a task for each row of x, and the number of runs."""
    calls: dict[tuple[str, str], list[Weight]] = {}
    for weight in weights:
        calls.setdefault((weight.call, weight.scheme), []).append(weight)
    for together in calls.values():
        scheme = BY_NAME[together[0].scheme]
        rows, times = together[0].rows(tokens)
        for start in range(0, rows, MAX_ROWS):
            stacked = scheme.passes * min(rows - start, MAX_ROWS)
            plans = [each for weight in together for each in _plans(weight, stacked)]
            yield plans, scheme.passes, times


def _plans(weight: Weight, rows: int) -> list[Plan]:
    """Return the plan of each part of K."""
    parts = weight_plans(BY_NAME[weight.scheme], weight.n, weight.k, CORES)
    return [plan(part, rows, Layout.ROW) for part in parts]


def saving(op: MatMul, driver: str, cores: int, *, int16: bool) -> Saving:
    """Return the expected saving if the NPU runs *op* instead of the host."""
    scheme = default_scheme(int16=int16)
    weights = plan_weights(number_format(scheme.task), op.n, op.k, cores=cores)
    job = [plan(weights, op.m * scheme.passes, Layout.ROW)]
    there = npu_seconds(job, driver).expected + host_seconds(job, scheme.passes, driver).expected
    image_bytes = sum(map(weights.image_bytes, range(len(weights.cores))))
    return Saving(host_product_seconds(op) - there, image_bytes)


def host_product_seconds(op: MatMul) -> float:
    """Return the time of *op* on the host's four A76, limited by arithmetic or memory."""
    fmt = types.BY_NAME[op.format]
    read = op.n * op.k * fmt.block_bytes / fmt.block
    return max(op.m * op.k * op.n / CPU_MACS_S, read / CPU_BYTES_S)
