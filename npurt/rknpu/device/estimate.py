"""How long a language model takes on an RK3588: its products on the NPU, the rest on the host."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npurt.device import MAX_ROWS, MatMul, Saving
from npurt.quant import types
from npurt.rknpu.device.needs import weight_plans
from npurt.rknpu.device.quantise import BY_NAME, default_scheme
from npurt.rknpu.isa.formats import number_format
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.plan.cost import Estimate, estimate, host_seconds, npu_seconds
from npurt.rknpu.plan.tiling import CORES, Plan, plan, plan_weights

# The host of these boards, four Cortex-A76, as llama.cpp uses it: [HW: rk-llama, Gemma3-1B Q8_0]
# 73 tokens/s of a prompt are 146e9 operations a second; memory: 25.6e9 (marfrit/rk-llama.cpp).
CPU_MACS_S = 73e9
CPU_BYTES_S = 25.6e9


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix ``[N, K]`` of a model.

    Attributes:
        scheme: A name in `npurt.rknpu.device.quantise.BY_NAME`.
        call: Weights with the same *call* are multiplied by one x, in one call.
        head: Only the last token of a run is multiplied by it.
        copies: How many there are of it, such as layers.
        experts: The number of experts, of which it is one; a token uses *used* of them.
        used: See there.
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
        """Return how many rows a product with it has in a run of *tokens*, and how many products.

        Of experts the most that the tokens can use are assumed.
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
    """Return how long a run of *tokens* takes, the whole of it.

    Args:
        weights: All that are multiplied.
        layers: Of the model.
        units: Width of the model plus that of its feed-forward part, over all layers.
        driver: A key of `npurt.rknpu.plan.cost.SPEEDS`.
        clock_hz: Of the NPU; by default what the driver gives it.
    """
    total = estimate(driver, lambda speed: layers * speed.layer_s + tokens * units * speed.unit_s)
    for job, passes, times in jobs(weights, tokens):
        npu = npu_seconds(job, driver, clock_hz)
        host = host_seconds(job, passes, driver)
        sums = [t + times * (a + b) for t, a, b in zip(total, npu, host, strict=True)]
        total = Estimate(*sums)
    return total


def jobs(weights: Sequence[Weight], tokens: int) -> Iterator[tuple[list[Plan], int, int]]:
    """Yield the plans of each job, the rows of a task for each row of x, and how often it runs."""
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
    """Return what is expected when the NPU does *op* and not the host."""
    scheme = default_scheme(int16=int16)
    weights = plan_weights(number_format(scheme.task), op.n, op.k, cores=cores)
    job = [plan(weights, op.m * scheme.passes, Layout.ROW)]
    there = npu_seconds(job, driver).expected + host_seconds(job, scheme.passes, driver).expected
    image_bytes = sum(map(weights.image_bytes, range(len(weights.cores))))
    return Saving(host_product_seconds(op) - there, image_bytes)


def host_product_seconds(op: MatMul) -> float:
    """Return how long *op* takes on the four A76 of the host, by arithmetic and memory alone."""
    fmt = types.BY_NAME[op.format]
    read = op.n * op.k * fmt.block_bytes / fmt.block
    return max(op.m * op.k * op.n / CPU_MACS_S, read / CPU_BYTES_S)
