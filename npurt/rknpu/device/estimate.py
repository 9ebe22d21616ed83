"""Estimate the time of a language model on an RK3588: NPU products, and other ops on the host."""

from collections.abc import Iterator, Sequence

from npurt.backend.estimates import Estimate, ModelWeight, ModelWork
from npurt.backend.host_cost import HOST, host_product_seconds
from npurt.device.device import MAX_ROWS, MatMul, Saving
from npurt.rknpu.device.needs import weight_plans
from npurt.rknpu.device.quantise import BY_NAME, default_scheme
from npurt.rknpu.isa.formats import number_format
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.plan.cost import host_seconds, npu_seconds
from npurt.rknpu.plan.tiling import CORES, ProductPlan, plan, plan_weights


def run_seconds(
    work: ModelWork, tokens: int, *, driver: str, clock_hz: float | None = None
) -> Estimate[float]:
    """Return the time of a run of *tokens*, including all ops.

    Args:
        work: The work of a token.
        tokens: The number of tokens.
        driver: A key of `npurt.rknpu.plan.cost.SPEEDS`.
        clock_hz: The NPU's clock; by default that of the driver.
    """
    other = (work.layers * host.layer_s + tokens * work.units * host.unit_s for host in HOST)
    total = Estimate(*other)
    for job, passes, times in jobs(work.weights, tokens):
        npu = npu_seconds(job, driver, clock_hz)
        host = host_seconds(job, passes, driver)
        sums = [t + times * (a + b) for t, a, b in zip(total, npu, host, strict=True)]
        total = Estimate(*sums)
    return total


def jobs(
    weights: Sequence[ModelWeight], tokens: int
) -> Iterator[tuple[list[ProductPlan], int, int]]:
    """Yield each job's plans, the rows of a task for each row of x, and the number of runs."""
    calls: dict[tuple[str, str], list[ModelWeight]] = {}
    for weight in weights:
        calls.setdefault((weight.call, weight.scheme), []).append(weight)
    for together in calls.values():
        scheme = BY_NAME[together[0].scheme]
        rows, times = together[0].rows(tokens)
        for start in range(0, rows, MAX_ROWS):
            stacked = scheme.passes * min(rows - start, MAX_ROWS)
            plans = [each for weight in together for each in _plans(weight, stacked)]
            yield plans, scheme.passes, times


def _plans(weight: ModelWeight, rows: int) -> list[ProductPlan]:
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
