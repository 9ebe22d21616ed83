"""Test the cost model against published measurements, and its inputs against the simulator."""

import dataclasses
import math

import pytest

from npurt.backend.estimates import Estimate, ModelWeight, ModelWork
from npurt.rknpu.device import quantise
from npurt.rknpu.device.estimate import run_seconds
from npurt.rknpu.isa.formats import FORMATS, number_format
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.plan import cost
from npurt.rknpu.plan.tiling import Interval, plan, plan_weights, split
from tests.rknpu.measurements import LANGUAGE, MODELS, PRODUCTS
from tests.rknpu.test_device import by_scheme, device, inputs, multiply, tensor

__all__ = ["device"]

INT8 = FORMATS["int8"]


def planned(n, k, rows):
    return plan(plan_weights(INT8, n, k), rows, Layout.ROW)


# --- Against measurements -----------------------------------------------------------------------


def plan_of(product):
    """Cut a measured product as its authors cut it."""
    rows, columns, k = product.tile or (None, 8192, None)
    weights = plan_weights(number_format(product.format), product.n, product.k, cores=product.cores)
    step, end = weights.format.k_step, weights.k_padded
    if product.whole:
        weights = dataclasses.replace(weights, slices=(Interval(0, end),))
    elif k:
        weights = dataclasses.replace(weights, slices=split(end, -(-end // k), step))
    return plan(weights, product.m, Layout.ROW, max_m=rows, max_n=columns)


def of_product(product):
    """Return the model's time for a measured product, in milliseconds."""
    npu = cost.npu_seconds([plan_of(product)], product.driver, product.mhz * 1e6)

    def rest(speed):
        packed = product.m * product.k * speed.element_s if product.host else 0.0
        read = product.m * product.n * product.host * speed.sum_s / product.threads
        return packed + read + (product.jobs - 1) * speed.submit_s

    others = cost.estimate(product.driver, rest)
    return Estimate(*[1e3 * (a + b) for a, b in zip(npu, others, strict=True)])


def of_run(run):
    """Return the model's time for a run of a language model, in milliseconds."""
    layers, d, ff, q, kv, vocabulary = MODELS[run.model]
    kinds = [("qkv", q, d), ("qkv", kv, d), ("qkv", kv, d), ("out", d, q)]
    kinds += [("gate up", ff, d), ("gate up", ff, d), ("down", d, ff)]
    weights = [ModelWeight(n, k, run.scheme, call, copies=layers) for call, n, k in kinds]
    weights.append(ModelWeight(vocabulary, d, run.scheme, "output", head=True))
    seconds = run_seconds(
        ModelWork(weights, layers, layers * (d + ff)), run.tokens, driver=run.driver,
        clock_hz=run.mhz * 1e6,
    )  # fmt: skip
    return Estimate(*[1e3 * each for each in seconds])


EVERY = [(of_product, each) for each in PRODUCTS] + [(of_run, each) for each in LANGUAGE]


@pytest.mark.parametrize(("model", "measured"), EVERY, ids=lambda each: getattr(each, "name", ""))
def test_each_measurement_is_in_the_range(model, measured):
    """This includes the measurements that were not used to fit the model."""
    estimate = model(measured)

    assert estimate.low <= measured.ms <= estimate.high


def off_by(kind):
    """Return lists of log(measured time / expected time), by ``left_out``."""
    found = {True: [], False: []}
    for model, each in EVERY:
        if model is kind:
            found[each.left_out].append(math.log(each.ms / model(each).expected))
    return found


def test_what_was_left_out_is_as_near_to_what_is_expected_as_what_was_fitted():
    """The typical error is a third, for fitted measurements and for others.

    It is larger for products whose tasks wait for each other, and for hosts that add partial sums
    in another way than npurt.
    """
    off = off_by(of_product)

    for logs in off.values():
        assert len(logs) >= 10
        assert math.exp(sum(map(abs, logs)) / len(logs)) < 1.45


def test_a_language_model_is_expected_to_take_no_less_than_others_have_reached():
    """The hosts of the others use several threads where npurt uses one."""
    assert all(log < 0 for logs in off_by(of_run).values() for log in logs)


def test_the_range_is_no_wider_than_what_is_not_known():
    """Boards differ by a third in bandwidth; the host causes most of the remaining range."""
    npu = [cost.npu_seconds([plan_of(p)], p.driver, p.mhz * 1e6) for p in PRODUCTS]

    assert all(estimate.low < estimate.expected < estimate.high for estimate in npu)
    assert max(estimate.high / estimate.low for estimate in npu) < 4.5
    assert max(of_run(run).high / of_run(run).low for run in LANGUAGE) < 11


@pytest.mark.parametrize(
    ("tokens", "rows", "times"), [(1, 1, 8), (4, 1, 32), (15, 1, 120), (16, 1, 128), (512, 32, 128)]
)
def test_experts_share_the_tokens(tokens, rows, times):
    """Each token uses 8 of 128 experts: this sets the rows of each expert and the products."""
    assert ModelWeight(768, 2048, "int8", "up", experts=128, used=8).rows(tokens) == (rows, times)
    assert ModelWeight(768, 2048, "int8", "up", copies=4).rows(tokens) == (tokens, 4)
    assert ModelWeight(768, 2048, "int8", "output", head=True).rows(tokens) == (1, 1)


def test_a_slower_clock_and_another_driver_take_longer():
    product = [planned(4096, 1536, 128)]

    vendor, stock = cost.npu_seconds(product, "rknpu"), cost.npu_seconds(product, "rocket")
    patched = cost.npu_seconds(product, "rocket", 600e6)

    for name in Estimate._fields:
        assert getattr(vendor, name) < getattr(patched, name) < getattr(stock, name)
    assert stock == cost.npu_seconds(product, "rocket", 200e6)


def test_weights_that_leave_no_room_for_the_next_group_keep_the_array_waiting():
    """With K = 4096, a group fills 4 banks and 64 rows fill 8; with half of K, two groups fit."""
    whole = dataclasses.replace(
        plan_weights(INT8, 4096, 4096, cores=1), slices=(Interval(0, 4096),)
    )
    halves = dataclasses.replace(whole, slices=split(4096, 2, 32))
    speed = cost.SPEEDS["rknpu"].expected

    def seconds(weights):
        work = cost.tasks_of([plan(weights, 64, Layout.ROW)])
        (busy,) = cost.task_seconds(work, speed, chained=True, clock_hz=1e9)
        return busy

    mac = 64 * 4096 * 4096 / 1024 / (speed.mac_share * 1e9)
    weights = 4096 * 4096 / speed.core_bytes_s
    assert seconds(whole) == pytest.approx(mac + weights, rel=0.05)
    assert seconds(halves) == pytest.approx(max(mac, weights), rel=0.2)


# --- Against the simulator ----------------------------------------------------------------------


def expected(plans, *, chained):
    return cost.task_seconds(
        cost.tasks_of(plans), cost.SPEEDS["rknpu"].expected, chained=chained, clock_hz=1e9
    )


def test_a_job_of_several_products_keeps_each_core_busy_with_all_of_them():
    one, other = planned(4096, 512, 16), planned(96, 512, 16)
    gap = cost.SPEEDS["rknpu"].expected.task_s  # the time before each task except the first

    together = expected([one, other], chained=False)

    apart = (expected([each], chained=False) for each in (one, other))
    assert together == [pytest.approx(a + gap + b) for a, b in zip(*apart, strict=True)]


def test_a_core_without_a_part_of_a_product_has_the_time_of_the_others():
    """32 columns are one group on one core, but the transfers of all cores use the same memory."""
    one, other = planned(96, 512, 1), planned(32, 512, 1)

    seconds = expected([one, other], chained=True)

    assert len(seconds) == 3
    assert seconds[0] > seconds[1] == seconds[2]


@pytest.mark.parametrize("scheme", ["int8", "int8x2", "int8x2-g512", "fp16"])
@pytest.mark.parametrize("m", [1, 32, 256])
def test_the_simulator_counts_what_the_plan_says(device, simulator, scheme, m):
    n, k = 200, 1100
    packed = by_scheme(device, tensor(n, k), scheme)
    x = inputs(m, k)
    multiply(device, x, packed)
    simulator.set("counters=0")

    multiply(device, x, packed)

    chosen = quantise.BY_NAME[scheme]
    plans = [plan(part.plan, m * chosen.passes, Layout.ROW) for part in packed.parts]
    counts = [cost.count(each) for each in plans]
    cores = simulator.report()["cores"]
    for name, counted in (
        ("feature_bytes", "features"), ("weight_bytes", "weights"), ("result_bytes", "outputs")
    ):  # fmt: skip
        assert sum(getattr(each, name) for each in counts) == sum(
            core["bytes"][counted] for core in cores
        )
    assert sum(each.tasks for each in counts) == sum(core["tasks"] for core in cores)
