"""Test plain int8 on the NPU: exact sums, and weights whose codes are given."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.device.device import MAX_EXACT_K
from npurt.errors import LayoutError, NumericsError, UnsupportedOp
from npurt.rknpu.device.device import open_rknpu
from tests.rknpu.conftest import STRICT
from tests.rknpu.test_device import NAMES, assert_exact, inputs, multiply


@pytest.fixture(scope="module", params=NAMES)
def device(request, simulator):
    simulator.set(f"reload=1 {STRICT}")
    with open_rknpu(request.param) as opened:
        yield opened
    simulator.set(f"reload=1 {STRICT}")


def integers(rng, shape, extremes=False):
    values = np.array([-128, -127, 0, 127] if extremes else range(-128, 128), np.int8)
    return rng.choice(values, shape)


def exact(a, b):
    return a.astype(np.int64) @ b.astype(np.int64)


@given(
    m=st.sampled_from([0, 1, 2, 5, 17, 130]),
    k=st.sampled_from([0, 1, 3, 32, 33, 100, 2080]),
    n=st.sampled_from([0, 1, 31, 33, 96, 200]),
    seed=st.integers(0, 2**32),
    extremes=st.booleans(),
)
def test_products_are_exact(device, m, k, n, seed, extremes):
    rng = np.random.default_rng(seed)
    a, b = integers(rng, (m, k), extremes), integers(rng, (k, n), extremes)

    y = device.matmul_i8(a, b)

    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, exact(a, b))


@pytest.mark.parametrize("value", [-128, 127])
def test_the_longest_sum_of_the_largest_products_fits(device, value):
    a = np.full((2, MAX_EXACT_K), -128, np.int8)
    b = np.full((MAX_EXACT_K, 1), value, np.int8)

    assert (device.matmul_i8(a, b) == -128 * value * MAX_EXACT_K).all()


@pytest.mark.parametrize("name", NAMES)
def test_npurt_matmul_of_int8_runs_on_the_npu_in_batches_too(name):
    rng = np.random.default_rng(0)
    a, b = integers(rng, (3, 520, 40)), integers(rng, (3, 40, 50))

    np.testing.assert_array_equal(npurt.matmul(a, b, device=name), exact(a, b))
    np.testing.assert_array_equal(npurt.matmul(a, b[0], device=name), exact(a, b[0]))
    np.testing.assert_array_equal(
        npurt.matmul(a[0, 0], b[0, :, 0], device=name), exact(a, b)[0, 0, 0]
    )
    with pytest.raises(UnsupportedOp, match="131072"):
        npurt.matmul(np.zeros((1, 1 << 17), np.int8), np.zeros((1 << 17, 1), np.int8), device=name)


def test_a_device_without_exact_products_says_so():
    with pytest.raises(UnsupportedOp, match="exact product") as caught:
        npurt.matmul(np.ones((2, 32), np.int8), np.ones((32, 2), np.int8), device="hexagon:sim")
    assert caught.value.remedy


def test_memory_goes_back_after_a_product(device):
    rng = np.random.default_rng(1)
    a, b = integers(rng, (2, 64)), integers(rng, (64, 64))
    for _ in range(3):
        device.matmul_i8(a, b)
        gc.collect()
    device.matmul(inputs(1, 32), device.pack_i8(b[:, :32].copy(), np.ones(64, np.float32)),
                  np.empty((1, 64), np.float32))  # fmt: skip
    assert len(device._weights._packed) <= 1
    assert len(device._weights.calls.made) <= 1


def test_codes_are_multiplied_as_they_are_given(device):
    """x is rounded in steps of 1/127 of the largest value of its row, and w is not rounded."""
    rng = np.random.default_rng(6)
    codes = integers(rng, (70, 100))
    scales = rng.uniform(0.5, 2, 70).astype(np.float32)
    packed, x = device.pack_i8(codes, scales), inputs(5, 100)

    y = multiply(device, x, packed)

    np.testing.assert_array_equal(
        packed.multiplied(slice(None))[:, :100], codes * scales[:, None].astype(float)
    )
    assert_exact(device, x, packed, y)
    rounded = device.multiplied(x, packed)[:, :100]
    assert (abs(x - rounded) <= 0.501 * abs(x).max(axis=1, keepdims=True) / 127).all()


def test_codes_that_use_few_values_survive_a_lost_device(simulator):
    """The values do not determine the codes: the largest code of a row need not be 127."""
    simulator.set(f"reload=1 {STRICT}")
    with open_rknpu(NAMES[0]) as opened:
        rng = np.random.default_rng(6)
        codes = rng.integers(-5, 6, (40, 64)).astype(np.int8)
        packed, x = opened.pack_i8(codes, np.full(40, 0.3, np.float32)), inputs(3, 64)
        before = multiply(opened, x, packed)
        simulator.set("fault=eio@submit")

        after = multiply(opened, x, packed)

        assert opened.events()
        np.testing.assert_array_equal(before, after)
        np.testing.assert_array_equal(
            packed.multiplied(slice(None)), codes * np.float32(0.3).astype(float)
        )
        assert_exact(opened, x, packed, after)


@pytest.mark.parametrize(
    ("codes", "scales", "error"),
    [
        (np.zeros((4, 32), np.int16), np.ones(4, np.float32), LayoutError),
        (np.zeros(32, np.int8), np.ones(1, np.float32), LayoutError),
        (np.zeros((4, 32), np.int8), np.ones(3, np.float32), LayoutError),
        (np.zeros((0, 32), np.int8), np.ones(0, np.float32), LayoutError),
        (np.zeros((1, 32), np.int8), np.full(1, np.nan, np.float32), NumericsError),
    ],
)
def test_what_is_no_weight_of_int8_is_refused(device, codes, scales, error):
    with pytest.raises(error) as caught:
        device.pack_i8(codes, scales)
    assert caught.value.remedy
