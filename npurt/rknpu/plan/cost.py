"""Estimate the time of products on the NPU and of the host's work: low, expected and high.

The model has few parameters, and each is a physical quantity: the fraction of the MAC array's peak,
the memory bandwidth, the time to start a task and a job, and the speed of the host's loops.  It was
fitted to published measurements, which `tests/rknpu/measurements.py` lists.  Some of them were not
used for the fit; a test checks that they are in the estimated range.  npurt itself was never timed
on this chip.

The range covers differences between boards, and unknown facts.  `Estimate.low` is the shortest time
that agrees with the measurements, `Estimate.high` the longest.  Decisions use `Estimate.expected`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from npurt.backend.estimates import Estimate
from npurt.backend.host_cost import HOST
from npurt.rknpu.isa import cbuf
from npurt.rknpu.isa.formats import NumberFormat
from npurt.rknpu.isa.task import Task
from npurt.rknpu.plan.tiling import ProductPlan

# The NPU's default clock with each driver, Hz.  rknpu: the governor's choice under load.  rocket:
# the rate of the device tree's assigned-clock-rates, which the driver never changes; kernels with a
# frequency patch have 600 MHz.  [HW: npu-notes, clock.md]
CLOCKS = {"rknpu": 1e9, "rocket": 200e6}
CHAINED = {"rknpu": True, "rocket": False}  # whether each task of a job starts the next
BUS_BYTES = 16  # bytes that a core reads in a clock


@dataclass(frozen=True, slots=True)
class Speed:
    """One estimate of the speed of a board.  Sources are below, with the values."""

    mac_share: float  # fraction of the MAC array's peak that a task reaches while it multiplies
    core_bytes_s: float  # bytes/s that one core reads
    all_bytes_s: float  # bytes/s that all cores read together
    task_s: float  # seconds from the end of a task to the start of the next
    submit_s: float  # seconds from the submit of a job to the start of its first task
    job_s: float  # host: seconds for each job, independent of its size
    element_s: float  # host: seconds to rotate and round an element of x
    sum_s: float  # host: seconds to read and scale a sum
    sync_bytes_s: float  # host: bytes/s of cache maintenance


# [HW] mac_share: 0.97 (happyme531, int8 128x1024x8192), 0.88 (rk-llama.cpp, float16 Q K^T);
#   0.8 fits the products of 4096 columns by marfrit/rk-llama.cpp.
# [HW] bytes: 11.1e9 one core, 26.6e9 to 28.6e9 three, LPDDR5 (npu-notes, rk-llama.cpp); boards with
#   LPDDR4X have two thirds of the bandwidth.
# [HW] task_s, rknpu: the remaining time of chained products of 320 tasks after computation and
#   transfers (rknpu-submit).  rocket: an interrupt for each task; a batching patch saves 44 us a
#   task; also the remaining time of 320 tasks at 600 MHz (npu-notes, iova-and-multicore.md and
#   not-mac-bound.md).
# [HW] submit_s, rknpu: 33 us (librknnrt), 54 to 67 us (ork-driver), 121 us for a small product,
#   interrupt included (rknpu-submit).  rocket: 27 us with the interrupt on a fast core, 52 us by
#   default, 109 us with a product of 64x256x512 (npu-notes).
# The host's rates are from npurt's loops on an x86-64 server (bench/RESULTS.md): 1.4 ns an element,
#   1.7 ns a sum, 20 us a job.  Low assumes this speed on each of four fast cores.  Expected assumes
#   that one Cortex-A76 takes 2.5 times as long, high 5 times.
_RKNPU = Estimate(
    Speed(0.97, 11.1e9, 31.0e9, 1e-6, 33e-6, 5e-6, 0.35e-9, 0.4e-9, HOST.low.sync_bytes_s),
    Speed(0.85, 11.1e9, 27.5e9, 10e-6, 50e-6, 50e-6, 3.5e-9, 4.2e-9, HOST.expected.sync_bytes_s),
    Speed(0.70, 7.4e9, 18.3e9, 40e-6, 100e-6, 100e-6, 7.0e-9, 8.5e-9, HOST.high.sync_bytes_s),
)
SPEEDS: dict[str, Estimate[Speed]] = {
    "rknpu": _RKNPU,
    "rocket": Estimate(
        replace(_RKNPU.low, task_s=20e-6, submit_s=27e-6),
        replace(_RKNPU.expected, task_s=60e-6, submit_s=52e-6),
        replace(_RKNPU.high, task_s=120e-6, submit_s=110e-6),
    ),
}


@dataclass(frozen=True, slots=True)
class ProductCounts:
    """The bytes, multiply-adds and tasks of a product."""

    macs: int  # multiply-adds of the padded product
    feature_bytes: int
    weight_bytes: int
    result_bytes: int
    tasks: int

    @property
    def moved(self) -> int:
        """Bytes transferred between memory and the NPU."""
        return self.feature_bytes + self.weight_bytes + self.result_bytes


def count(product: ProductPlan) -> ProductCounts:
    """Count the bytes and multiply-adds of *product*, over all cores."""
    every = [tile.task for tiles in product.tiles for tile in tiles]
    macs = sum(task.m * task.k * task.n for task in every)
    features, weights, results = map(sum, zip(*map(_bytes, every), strict=True))
    return ProductCounts(macs, features, weights, results, len(every))


def mac_rate(kind: NumberFormat) -> int:
    """Return the multiply-adds of a core in one clock."""
    return kind.group * (16 if kind.bits == 32 else 32)


def estimate(driver: str, seconds: Callable[[Speed], float]) -> Estimate[float]:
    """Return *seconds* of each speed estimate for boards with *driver*."""
    return Estimate(*[seconds(speed) for speed in SPEEDS[driver]])


def npu_seconds(
    plans: Sequence[ProductPlan], driver: str, clock_hz: float | None = None
) -> Estimate[float]:
    """Return the time of a job of *plans* from its submit to its end.

    Args:
        driver: A key of `SPEEDS`.
        clock_hz: The NPU's clock; by default the driver's in `CLOCKS`.
    """
    hz = clock_hz or CLOCKS[driver]
    work = tasks_of(plans)
    return estimate(
        driver,
        lambda speed: (
            speed.submit_s + max(task_seconds(work, speed, chained=CHAINED[driver], clock_hz=hz))
        ),
    )


def host_seconds(plans: Sequence[ProductPlan], passes: int, driver: str) -> Estimate[float]:
    """Return the time of the host's work for a job of *plans* with one x: round, sync, scale.

    Args:
        passes: Rows of a task for each row of x.
    """
    elements = plans[0].rows // passes * plans[0].weights.k_padded
    cores = len(plans[0].tiles)
    results = sum(count(each).result_bytes for each in plans)
    copies = 1 if CHAINED[driver] else cores  # each core of rocket has an address space
    synced = passes * elements * copies + results
    sums = results // plans[0].weights.format.out_bytes
    return estimate(
        driver,
        lambda speed: (
            speed.job_s
            + elements * speed.element_s
            + sums * speed.sum_s
            + synced / speed.sync_bytes_s
        ),
    )


def tasks_of(plans: Sequence[ProductPlan]) -> list[list[Task]]:
    """Return the tasks of each core for a job that contains all *plans*."""
    work: list[list[Task]] = [[] for _ in range(max(len(each.tiles) for each in plans))]
    for each in plans:
        for tasks, tiles in zip(work, each.tiles, strict=False):
            tasks += [tile.task for tile in tiles]
    return work


def task_seconds(
    work: Sequence[Sequence[Task]], speed: Speed, *, chained: bool, clock_hz: float
) -> list[float]:
    """Return the time of each core for its tasks, while all cores run."""
    bandwidth = min(speed.core_bytes_s, BUS_BYTES * clock_hz, speed.all_bytes_s / len(work))
    mac_s = speed.mac_share * clock_hz
    return [
        sum(_seconds(task, bandwidth, mac_s, chained and len(tasks) > 1) for task in tasks)
        + speed.task_s * max(0, len(tasks) - 1)  # the submit starts the first task
        for tasks in work
    ]


def _bytes(task: Task) -> tuple[int, int, int]:
    features = task.m * task.format.in_bytes(task.k)
    return features, task.weight_bytes, task.m * task.n * task.format.out_bytes


def _seconds(task: Task, bandwidth: float, mac_s: float, chained: bool) -> float:
    """Return the NPU's time for *task*.

    While the NPU multiplies, it loads weights, one group of kernels after another, and writes
    results.  If CBUF has no space for a second group, loading waits until the NPU has used the
    first.  Features are loaded before a task, or in a chain during the task before.
    """
    mac = task.m * task.k * task.n / mac_rate(task.format) / mac_s
    features, weights, results = (size / bandwidth for size in _bytes(task))
    _, banks = cbuf.split(task.format, task.k, task.features.width, task.features.height)
    waits = banks < 2 * cbuf.weight_banks(task.format, task.k)
    busy = max(mac + weights if waits else mac, weights + results)
    return max(busy, features + weights + results) if chained else features + busy
