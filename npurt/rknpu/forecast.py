"""How long a language model takes on an RK3588: its products on the NPU, the rest on the host."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npurt.rknpu.cost import Guess, guess, host_seconds, npu_seconds
from npurt.rknpu.layout import Layout
from npurt.rknpu.needs import MAX_ROWS, weight_plans
from npurt.rknpu.numerics import BY_NAME
from npurt.rknpu.plan import CORES, Plan, plan


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix ``[N, K]`` of a model.

    Attributes:
        scheme: A name in `npurt.rknpu.numerics.BY_NAME`.
        call: Weights with the same are multiplied by one x, in one call.
        head: Only the last token of a run is multiplied by it.
        copies: How many there are of it, such as layers.
        experts: Of how many it is one; each token is multiplied by *used* of them.
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

        Of experts: when as many are used as can be.
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
) -> Guess[float]:
    """Return how long a run of *tokens* takes, the whole of it.

    Args:
        weights: All that are multiplied.
        layers: Of the model.
        units: Width of the model plus that of its feed-forward part, over all layers.
        driver: A key of `npurt.rknpu.cost.SPEEDS`.
        clock_hz: Of the NPU; by default what the driver gives it.
    """
    total = guess(driver, lambda speed: layers * speed.layer_s + tokens * units * speed.unit_s)
    for job, passes, times in jobs(weights, tokens):
        npu = npu_seconds(job, driver, clock_hz)
        host = host_seconds(job, passes, driver)
        sums = [t + times * (a + b) for t, a, b in zip(total, npu, host, strict=True)]
        total = Guess(*sums)
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
