"""Test that no job is so long that the kernel ends it: rocket allows half a second per job."""

import numpy as np
import pytest

from npurt.device.device import MAX_ROWS
from npurt.errors import DeviceLost, NumericsError
from npurt.rknpu.device.device import open_rknpu
from npurt.rknpu.device.needs import rows_within
from npurt.rknpu.driver.rocket import PLANNED_S, RocketDriver
from npurt.rknpu.isa.formats import FORMATS
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.plan import cost
from npurt.rknpu.plan.tiling import plan, plan_weights
from tests.rknpu.conftest import STRICT
from tests.rknpu.test_device import by_scheme, inputs, multiply, tensor

SLOWER = 200  # ratio of the stock clock to the test's clock, with which small products take long
STOCK_HZ = cost.CLOCKS["rocket"]
CLOCK = f"rocket_mhz={STOCK_HZ / 1e6 / SLOWER}"  # a setting of the simulator
OUTPUTS = [(49152, 576), (151936, 896), (151936, 1536), (152064, 3584), (128256, 4096)]


@pytest.fixture
def slow(simulator):
    """Return the simulator, with a clock at which small products take long."""
    simulator.set(f"reload=1 {STRICT} {CLOCK}")
    yield simulator
    simulator.set(f"reload=1 {STRICT} rocket_mhz=200")


@pytest.fixture(params=["0", "1"], ids=["one thread", "threads"])
def device(request, slow, monkeypatch):
    monkeypatch.setenv("NPURT_ROCKET_THREADS", request.param)
    monkeypatch.setattr(RocketDriver, "planned_s", PLANNED_S / SLOWER)
    with open_rknpu("rknpu:sim") as opened:
        slow.set("counters=0")
        yield opened


def jobs_of(simulator):
    return simulator.report()["jobs"]["rocket"]


def mac_seconds(n, k, rows):
    """Return the time of the MACs on each of three cores at 200 MHz, 70 % of 1024 per cycle."""
    return rows * k * n / 3 / 1024 / 0.70 / 200e6


@pytest.mark.parametrize(("n", "k"), OUTPUTS)
def test_the_output_matrix_of_every_model_has_as_many_rows_as_there_is_time_for(n, k):
    """MACs take more than half of the time of a job, and transfers less."""
    rows = rows_within(PLANNED_S, (plan_weights(FORMATS["int8"], n, k),), 2, MAX_ROWS)

    assert mac_seconds(n, k, 2 * rows) < PLANNED_S
    assert rows == MAX_ROWS or mac_seconds(n, k, 2 * 2 * rows) > PLANNED_S / 2


def test_a_job_with_few_rows_is_never_cut():
    weights = (plan_weights(FORMATS["int8"], 152064, 3584),)

    assert rows_within(0.0, weights, 2, MAX_ROWS) == 16


@pytest.mark.parametrize("clock_hz", [STOCK_HZ, STOCK_HZ / SLOWER, cost.CLOCKS["rknpu"]])
def test_the_simulator_takes_a_job_for_as_long_as_the_model_does(slow, clock_hz):
    """The only difference is the 52 us of the simulator's SUBMIT; the report has whole ns."""
    slow.set(f"rocket_mhz={clock_hz / 1e6}")
    with open_rknpu("rknpu:sim") as device:
        packed = by_scheme(device, tensor(3000, 512), "int8x2")
        (part,) = packed.parts
        multiply(device, inputs(16, 512), packed)  # from here, all cores share the memory
        slow.set("counters=0")
        multiply(device, inputs(16, 512), packed)

    took = [core["model_ns"] / 1e9 - 52e-6 for core in slow.report()["cores"]]
    work = cost.tasks_of([plan(part.plan, 2 * 16, Layout.ROW)])
    expected = cost.SPEEDS["rocket"].expected
    wanted = cost.task_seconds(work, expected, chained=False, clock_hz=clock_hz)
    assert took == pytest.approx(wanted, abs=2e-9)


@pytest.mark.parametrize("scheme", ["int8x2", "int8", "fp16", "int8x2-g512"])
def test_jobs_of_many_rows_take_no_longer_than_planned(device, slow, scheme):
    packed = by_scheme(device, tensor(6000, 600), scheme)
    multiply(device, inputs(256, 600), packed)

    report = slow.report()
    # All cores have the same number of jobs.
    jobs = report["jobs"]["rocket"] // len(report["cores"])
    assert 1 < jobs < 16
    for core in report["cores"]:
        assert core["model_ns"] / 1e9 < jobs * PLANNED_S


def test_many_rows_are_cut_into_jobs_that_the_kernel_lets_end(device, slow):
    packed = [by_scheme(device, tensor(6000, 512), name) for name in ("int8x2", "int8", "fp16")]
    x = inputs(300, 512)

    together = multiply(device, x, *packed)

    assert slow.report()["refused"] == 0
    assert jobs_of(slow) > 3 * len(packed)
    for w, y in zip(packed, together, strict=True):
        apart = [multiply(device, x[i : i + 10], w) for i in range(0, 300, 10)]
        np.testing.assert_array_equal(y, np.concatenate(apart))


def test_exact_products_are_cut_likewise(device, slow):
    rng = np.random.default_rng(0)
    a = rng.integers(-128, 128, (300, 512), np.int8)
    b = rng.integers(-128, 128, (512, 6000), np.int8)

    y = device.matmul_i8(a, b)

    np.testing.assert_array_equal(y, a.astype(np.float64) @ b.astype(np.float64))
    assert slow.report()["refused"] == 0
    assert jobs_of(slow) > 3


def test_a_row_of_a_later_job_that_is_not_finite_is_told_by_its_number(device, slow):
    packed = by_scheme(device, tensor(6000, 512), "int8x2")
    x = inputs(300, 512)
    x[299, 0] = np.nan

    with pytest.raises(NumericsError, match="row 299 "):
        multiply(device, x, packed)
    assert jobs_of(slow) > 3


def test_without_the_cut_the_kernel_would_end_every_job(device, slow, monkeypatch):
    monkeypatch.setattr(RocketDriver, "planned_s", 10.0)
    packed = by_scheme(device, tensor(6000, 512), "int8x2")

    with pytest.raises(DeviceLost, match="without writing its result"):
        multiply(device, inputs(300, 512), packed)
    assert "more than 500 ms at 1 MHz" in slow.report()["last_refusal"]


@pytest.mark.parametrize(("n", "k"), OUTPUTS)
def test_the_vendors_driver_is_told_to_wait_for_as_long_as_it_may_take(n, k, simulator):
    """A job there has all rows, and the wait is twice the model's time at a fifth of the clock."""
    simulator.set(f"reload=1 {STRICT}")
    whole = [plan(plan_weights(FORMATS["int8"], n, k), 2 * MAX_ROWS, Layout.ROW)]
    slowest = cost.npu_seconds(whole, "rknpu", STOCK_HZ).high
    usual = cost.npu_seconds(whole, "rknpu").expected
    with open_rknpu("rknpu:sim-vendor") as device:
        assert device._driver.planned_s == float("inf")
        assert device._driver._patience(usual) > 2 * slowest
        assert device._driver.deadline_s > 2 * slowest
    assert slowest > 0.99 * mac_seconds(n, k, 2 * MAX_ROWS)
