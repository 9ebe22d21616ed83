"""Test the NPU's products on the host: equal bits for every scheme, on both drivers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.device.host_products import KeepsArithmetic
from npurt.errors import NumericsError
from npurt.rknpu.device import quantise
from npurt.rknpu.device.device import open_rknpu
from tests.rknpu.conftest import STRICT
from tests.rknpu.test_device import NAMES, by_scheme, inputs, multiply, tensor


@pytest.fixture(scope="module", params=NAMES)
def device(request, simulator):
    simulator.set(f"reload=1 {STRICT}")
    with open_rknpu(request.param) as opened:
        yield opened


def assert_equal_products(device, packed, x, threads=1):
    """Check that the host computes what the NPU computes; return the weight on the host."""
    moved = device.on_host(packed, threads)
    np.testing.assert_array_equal(
        multiply(moved.device, x, moved).view(np.uint32),
        multiply(device, x, packed).view(np.uint32),
    )
    return moved


@pytest.mark.parametrize("scheme", quantise.BY_NAME)
@settings(max_examples=15)
@given(
    m=st.integers(1, 9),
    n=st.integers(1, 150),
    k=st.integers(1, 1400),
    size=st.sampled_from([1e-38, 1e-3, 1.0, 1e30]),
    seed=st.integers(0, 2**32 - 1),
)
def test_products_equal_those_of_the_npu(device, scheme, m, n, k, size, seed):
    packed = by_scheme(device, tensor(n, k, seed=seed), scheme)

    assert_equal_products(device, packed, inputs(m, k, seed + 1) * np.float32(size))


@pytest.mark.parametrize("scheme", quantise.BY_NAME)
def test_sums_in_slices_of_k_equal_those_of_the_npu(device, scheme):
    """Large K is split, so sums of float16 products are rounded to float32 after each slice."""
    packed = by_scheme(device, tensor(70, 12000), scheme)
    if scheme == "fp16":
        assert len(packed.slices[0]) > 1

    moved = assert_equal_products(device, packed, inputs(3, 12000), threads=2)

    x, rows = inputs(2, 12000), slice(5, 40)
    np.testing.assert_array_equal(moved.multiplied(rows), packed.multiplied(rows))
    np.testing.assert_array_equal(moved.device.multiplied(x, moved), device.multiplied(x, packed))
    np.testing.assert_array_equal(moved.error(rows), packed.error(rows))
    np.testing.assert_array_equal(moved.floor(rows), packed.floor(rows))


def test_int8_codes_of_a_caller_are_multiplied_exactly(device):
    rng = np.random.default_rng(2)
    codes = rng.integers(-128, 128, (40, 300), np.int8)
    packed = device.pack_i8(codes, np.ones(40, np.float32))
    x = rng.integers(-127, 128, (2, 300)).astype(np.float32)
    x[:, 0] = 127  # so the scale of a row is 1

    moved = assert_equal_products(device, packed, x)

    exact = x.astype(np.int64) @ codes.T.astype(np.int64)
    np.testing.assert_array_equal(multiply(moved.device, x, moved), exact.astype(np.float32))


@pytest.mark.parametrize("scheme", quantise.BY_NAME)
def test_rows_that_are_not_finite_are_refused(device, scheme):
    assert isinstance(device, KeepsArithmetic)
    moved = device.on_host(by_scheme(device, tensor(20, 64), scheme), 1)
    x = inputs(3, 64)
    x[2, 5] = np.inf

    with pytest.raises(NumericsError, match="row 2"):
        multiply(moved.device, x, moved)
