"""What the cost model is told is what the device really does: the simulator counts by itself."""

import pytest

from npurt.rknpu import cost, numerics
from npurt.rknpu.forms import FORMS
from npurt.rknpu.layout import Layout
from npurt.rknpu.plan import plan, plan_weights
from tests.rknpu.test_device import by_scheme, device, inputs, multiply, tensor

__all__ = ["device"]

INT8 = FORMS["int8"]


def planned(n, k, rows):
    return plan(plan_weights(INT8, n, k), rows, Layout.ROW)


def test_a_job_of_several_products_keeps_each_core_busy_with_all_of_them():
    one, other = planned(4096, 512, 16), planned(96, 512, 16)

    together = cost.core_seconds([one, other], chained=False)

    apart = (cost.core_seconds([each], chained=False) for each in (one, other))
    assert together == [pytest.approx(a + b) for a, b in zip(*apart, strict=True)]
    assert cost.estimate(one, chained=False).seconds == max(cost.core_seconds([one], chained=False))


def test_a_core_without_a_part_of_a_product_has_the_time_of_the_others():
    """32 columns are one group, which one core has; all cores share the memory."""
    one, other = planned(96, 512, 1), planned(32, 512, 1)

    seconds = cost.core_seconds([one, other], chained=True)

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

    chosen = numerics.BY_NAME[scheme]
    plans = [plan(part.plan, m * chosen.passes, Layout.ROW) for part in packed.parts]
    estimates = [cost.estimate(each, chained=True) for each in plans]
    cores = simulator.report()["cores"]
    for name, counted in (
        ("feature_bytes", "features"), ("weight_bytes", "weights"), ("result_bytes", "outputs")
    ):  # fmt: skip
        assert sum(getattr(estimate, name) for estimate in estimates) == sum(
            core["bytes"][counted] for core in cores
        )
    assert sum(estimate.tasks for estimate in estimates) == sum(core["tasks"] for core in cores)
