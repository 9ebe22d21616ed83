"""Tests of int8 x int8 -> int32: products are exact for all values, sizes and strides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cpu.device import CpuDevice
from npurt.device.device import MAX_EXACT_K
from tests.cpu import cases


@pytest.fixture(scope="module")
def device(run):
    with CpuDevice(threads=1, isa=run.isa) as opened:
        yield opened


def exact(a, b):
    return a.astype(np.int64) @ b.astype(np.int64)


@given(
    m=st.sampled_from([1, 2, 3, 4, 5, 8, 9, 17]),
    k=st.sampled_from([1, 2, 3, 4, 5, 15, 16, 17, 31, 64, 130]),
    n=st.sampled_from([1, 15, 16, 17, 33]),
    seed=st.integers(0, 2**32),
    extremes=st.booleans(),
)
def test_products_are_exact(device, m, k, n, seed, extremes):
    rng = cases.rng_of(seed)
    values = np.array([-128, -127, 0, 127] if extremes else range(-128, 128), np.int8)
    a, b = rng.choice(values, (m, k)), rng.choice(values, (k, n))

    np.testing.assert_array_equal(device.matmul_i8(a, b), exact(a, b))


@pytest.mark.parametrize("value", [-128, 127])
def test_the_longest_sum_of_the_largest_products_fits(device, value):
    a = np.full((2, MAX_EXACT_K), -128, np.int8)
    b = np.full((MAX_EXACT_K, 1), value, np.int8)

    np.testing.assert_array_equal(device.matmul_i8(a, b), exact(a, b))


@pytest.mark.parametrize(
    "view", [lambda b: b.T.copy().T, lambda b: b[::-1, ::-1], lambda b: b[::2]]
)
def test_strides_do_not_matter(device, view):
    rng = cases.rng_of("strides")
    b = view(rng.integers(-128, 128, (20, 18), np.int8))
    a = rng.integers(-128, 128, (3, len(b)), np.int8)

    np.testing.assert_array_equal(device.matmul_i8(a, b), exact(a, b))


def test_many_rows_are_multiplied_in_slices(device):
    rng = cases.rng_of("slices")
    a, b = rng.integers(-128, 128, (1030, 7), np.int8), rng.integers(-128, 128, (7, 3), np.int8)

    np.testing.assert_array_equal(device.matmul_i8(a, b), exact(a, b))


@pytest.mark.parametrize(("m", "k", "n"), [(0, 4, 4), (4, 0, 4), (4, 4, 0)])
def test_nothing_multiplied_is_zero(device, m, k, n):
    product = device.matmul_i8(np.ones((m, k), np.int8), np.ones((k, n), np.int8))

    assert (product.shape, product.dtype) == ((m, n), np.int32)
    assert not product.any()
