"""Time of a plan by the published cost model: an estimate, not a measurement.

Within about 20 % of the figures that peers published for this chip (happyme531, gregordinary,
RockNPU, rk-llama.cpp); npurt itself was never timed on one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from npurt.rknpu.forms import Form
from npurt.rknpu.plan import Plan
from npurt.rknpu.task import Task

CLOCK_HZ = 1e9  # [HW] the vendor's governor
STOCK_HZ = 200e6  # [HW] what stock rocket leaves the NPU at
EFFICIENCY = 0.88  # [HW] best seen of the MAC array's peak
CORE_BYTES_S = 11.1e9  # [HW] one core reading
ALL_BYTES_S = 27.5e9  # [HW] three cores on LPDDR5; LPDDR4X boards less
BUS_BYTES = 16  # a clock
SUBMIT_S = {"rknpu": 33e-6, "rocket": 52e-6}  # [HW] for each job


@dataclass(frozen=True, slots=True)
class Estimate:
    """Model figures of one product."""

    seconds: float
    macs: int  # of the padded product
    feature_bytes: int
    weight_bytes: int
    result_bytes: int
    tasks: int

    @property
    def moved(self) -> int:
        """Bytes between memory and the NPU."""
        return self.feature_bytes + self.weight_bytes + self.result_bytes


def mac_rate(form: Form) -> int:
    """Products that a core adds up in a clock."""
    return form.group * (16 if form.bits == 32 else 32)


def estimate(plan: Plan, *, chained: bool, submit_s: float = 0.0) -> Estimate:
    """Estimate *plan*; tasks that are *chained* overlap their transfers with computing."""
    cores = core_seconds([plan], chained=chained)
    every = [tile.task for tiles in plan.tiles for tile in tiles]
    macs = sum(task.m * task.k * task.n for task in every)
    features, weights, results = map(sum, zip(*map(_bytes, every), strict=True))
    return Estimate(max(cores) + submit_s, macs, features, weights, results, len(every))


def core_seconds(
    plans: Sequence[Plan], *, chained: bool, clock_hz: float = CLOCK_HZ
) -> list[float]:
    """Return how long each core is at work when *plans* are one job."""
    work: list[list[Task]] = [[] for _ in range(max(len(plan.tiles) for plan in plans))]
    for each in plans:
        for tasks, tiles in zip(work, each.tiles, strict=False):
            tasks += [tile.task for tile in tiles]
    return task_seconds(work, chained=chained, clock_hz=clock_hz)


def task_seconds(
    work: Sequence[Sequence[Task]], *, chained: bool, clock_hz: float = CLOCK_HZ
) -> list[float]:
    """Return how long each core is at work with its tasks, all cores at once."""
    bandwidth = min(CORE_BYTES_S, BUS_BYTES * clock_hz, ALL_BYTES_S / len(work))
    mac_s = EFFICIENCY * clock_hz
    return [
        sum(_seconds(task, bandwidth, mac_s, chained and len(tasks) > 1) for task in tasks)
        for tasks in work
    ]


def _bytes(task: Task) -> tuple[int, int, int]:
    features = task.m * task.form.in_bytes(task.k)
    return features, task.weight_bytes, task.m * task.n * task.form.out_bytes


def _seconds(task: Task, bandwidth: float, mac_s: float, chained: bool) -> float:
    mac = task.m * task.k * task.n / mac_rate(task.form) / mac_s
    features, weights, results = (size / bandwidth for size in _bytes(task))
    if chained:
        return max(mac, features + weights + results)
    return features + max(mac, weights) + results
