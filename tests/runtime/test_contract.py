"""Tests that every device refuses operands that do not fit, before it runs a kernel."""

import numpy as np
import pytest

import npurt
from npurt.device.device import MatMul
from npurt.errors import LayoutError
from npurt.quant.tensor import QTensor

M, N, K = 3, 48, 64


def zeros(*shape):
    return np.zeros(shape, np.float32)


def read_only(array):
    array.flags.writeable = False
    return array


UNFIT = {
    "x is wider": (zeros(M, K + 1), zeros(M, N)),
    "x would have to be broadcast": (zeros(M, 1), zeros(M, N)),
    "x is a vector": (zeros(K), zeros(1, N)),
    "x is a stack": (zeros(1, M, K), zeros(1, M, N)),
    "x is float64": (np.zeros((M, K)), zeros(M, N)),
    "the result is too narrow": (zeros(M, K), zeros(M, N - 1)),
    "the result is too wide": (zeros(M, K), zeros(M, N + 1)),
    "the result has too few rows": (zeros(M, K), zeros(M - 1, N)),
    "the result has too many rows": (zeros(M, K), zeros(M + 1, N)),
    "the result is a vector": (zeros(1, K), zeros(N)),
    "the result is float64": (zeros(M, K), np.zeros((M, N))),
    "the result cannot be written": (zeros(M, K), read_only(zeros(M, N))),
}


STRIDED = {
    "x": (zeros(K, M).T, zeros(M, N)),
    "the result": (zeros(M, K), zeros(N, M).T),
}


@pytest.fixture(scope="module", params=["cpu", "hexagon:sim", "rknpu:sim"])
def device(request):
    with npurt.open_device(request.param) as opened:
        yield opened


@pytest.fixture(scope="module")
def weight():
    rng = np.random.default_rng(7)
    return QTensor.quantize(rng.standard_normal((N, K)).astype(np.float32), "q8_0")


@pytest.mark.parametrize("what", UNFIT)
def test_operands_that_do_not_fit_are_refused_and_nothing_is_written(device, weight, what):
    packed = device.pack(weight)
    x, out = UNFIT[what]
    for multiply in (
        lambda: device.matmul(x, packed, out),
        lambda: device.matmuls(x, [packed, packed], [out, out]),
    ):
        with pytest.raises(LayoutError, match="do not fit") as caught:
            multiply()
        assert f"{x.dtype} {list(x.shape)}" in caught.value.what
        assert f"{out.dtype} {list(out.shape)}" in caught.value.what
    assert not out.any()


@pytest.mark.parametrize("what", STRIDED)
def test_what_is_not_in_c_order_is_refused_or_no_matter(device, weight, what):
    x, out = STRIDED[what]
    packed = device.pack(weight)
    if device.caps.name == "hexagon:sim":
        device.matmul(x, packed, out)
    else:
        with pytest.raises(LayoutError, match="C order"):
            device.matmul(x, packed, out)
    assert not out.any()  # the product with 0


@pytest.mark.parametrize("count", [1, 3])
def test_every_weight_has_a_result(device, weight, count):
    packed = device.pack(weight)
    with pytest.raises(LayoutError, match="do not fit"):
        device.matmuls(zeros(M, K), [packed, packed], [zeros(M, N)] * count)


def test_a_weight_of_another_device_is_refused(device, weight):
    with npurt.open_device("cpu") as other:
        stranger = other.pack(weight)
        with pytest.raises(LayoutError, match="another device"):
            device.matmul(zeros(M, K), stranger, zeros(M, N))


def test_a_product_of_no_rows_is_one(device, weight):
    """A product of no rows is allowed, as in numpy, so callers need no case for an empty batch."""
    packed = device.pack(weight)
    assert device.why_not(MatMul(0, K, N, weight.dtype)) is None

    device.matmul(zeros(0, K), packed, zeros(0, N))
    device.matmuls(zeros(0, K), [packed, packed], [zeros(0, N), zeros(0, N)])
    with pytest.raises(LayoutError, match="do not fit"):
        device.matmul(zeros(0, K + 1), packed, zeros(0, N))

    assert len(device.multiplied(zeros(0, K), packed)) == 0
    magnitudes = device.magnitudes(zeros(0, K), packed)
    assert magnitudes is None or magnitudes.shape == (0,)


def test_what_fits_is_multiplied(device, weight):
    packed = device.pack(weight)
    x = np.random.default_rng(8).standard_normal((M, K)).astype(np.float32)
    outs = [zeros(M, N), zeros(M, N)]
    device.matmuls(x, [packed, packed], outs)

    exact = x.astype(np.float64) @ weight.dequantize().T.astype(np.float64)
    for out in outs:  # rounding x to int8 gives an error of 1/200, a wrong product one of 1
        assert np.linalg.norm(out - exact) < 0.02 * np.linalg.norm(exact)
