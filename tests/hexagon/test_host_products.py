"""Tests of the DSP's products on the host: equal bits, in every format, for any rows."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings

from npurt.device.host_products import HostDevice, KeepsArithmetic
from npurt.errors import LayoutError, NumericsError, UnsupportedOp
from npurt.hexagon.host.products import HexagonHostPacked
from npurt.hexagon.layout import images
from npurt.hexagon.layout.formats import BY_NAME
from npurt.quant.tensor import QTensor
from tests.hexagon.reference import Reference
from tests.hexagon.test_reference import CASES, NAMES, assert_same_bits, case, group_of
from tests.hexagon.weights import groups


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return Reference(tmp_path_factory.mktemp("reference"))


def on_host(name, n, k, group, image, threads=1):
    """Return the weight of an image on the host."""
    shape = SimpleNamespace(shape=(n, k), dtype=name)
    return HexagonHostPacked(HostDevice("hexagon", threads), shape, BY_NAME[name], group, image)


def product(x, w):
    y = np.full((len(x), w.n), np.nan, np.float32)
    w.device.matmul(x, w, y)
    return y


@settings(max_examples=150)
@given(**CASES)
def test_products_equal_the_reference_of_the_kernels(reference, name, n, seed, **shape):
    x, image = case(name, n=n, seed=seed, **shape)
    group = group_of(name, seed)

    y = product(x, on_host(name, n, x.shape[1], group, image))

    assert_same_bits(y, reference.run(x, image, name, n, group=group).result(n))


@pytest.mark.parametrize("name", NAMES)
def test_every_format_and_grouping_equals_the_reference(reference, name):
    for rows, extreme in (("spread", 0), ("tiny", -1), ("huge", 1)):
        x, image = case(name, rows, extreme, 6, 13, 169, 1)
        for group in groups(name):
            y = product(x, on_host(name, 169, x.shape[1], group, image))
            assert_same_bits(y, reference.run(x, image, name, 169, group=group).result(169))


def test_a_literal_product():
    """One column of 8 (code 8 + 8 - 16), times a row of ones: dsp/kernels/product.h by hand.

    The row has E = 127 and V = 2^23 / 2^0, so the scale is (8388608 + 65536 + 512) / 2^9 + 1 =
    16514, rounded down; a code is 1 / (16514 * 2^-21) = 126.99, so 127, and 32 codes of 127 times 8
    are 32512.  The scale of w is 0.5 = 16384 * 2^-15.
    """
    w = QTensor.quantize(np.full((1, 32), -4.0, np.float32), "q4_0")  # codes -8, scale 0.5

    y = product(np.ones((1, 32), np.float32), on_host("q4_0", 1, 32, 32, images.pack(w)))

    scale = (16384 * 16514 + (1 << 14)) >> 15
    assert y[0, 0] == np.float32(-32512 * scale * 2.0**15 * 2.0**-15 * 2.0**-21)
    assert abs(y[0, 0] + 128) < 0.1


def test_threads_compute_the_same_bits():
    x, image = case("q4_k", "gauss", 0, 9, 40, 1000, 3)

    one, three = (
        product(x, on_host("q4_k", 1000, x.shape[1], 32, image, threads)) for threads in (1, 3)
    )

    assert_same_bits(one, three)


def test_the_device_hands_over_equal_products(shared):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((5, 256)).astype(np.float32)
    tensors = [
        QTensor.quantize(rng.standard_normal((n, 256)).astype(np.float32), kind)
        for n, kind in ((96, "q4_0"), (70, "q8_0"), (33, "q6_k"), (40, "f16"))
    ]
    packed = [shared.pack(tensor) for tensor in tensors]
    packed.append(
        shared.pack_i8(rng.integers(-127, 128, (40, 256), np.int8), np.ones(40, np.float32))
    )

    assert isinstance(shared, KeepsArithmetic)
    for w in packed:
        y = np.empty((5, w.n), np.float32)
        shared.matmul(x, w, y)
        moved = shared.on_host(w, 2)
        assert_same_bits(product(x, moved), y)
        rows = slice(3, 30)
        np.testing.assert_array_equal(moved.multiplied(rows), w.multiplied(rows))
        np.testing.assert_array_equal(moved.error(rows), w.error(rows))
        np.testing.assert_array_equal(moved.floor(rows), w.floor(rows))
        there, here = shared.multiplied(x, w), moved.device.multiplied(x, moved)
        np.testing.assert_array_equal(here, there)
        np.testing.assert_array_equal(moved.peak(rows, here), w.peak(rows, there))
        np.testing.assert_array_equal(moved.device.magnitudes(x, moved), shared.magnitudes(x, w))
        assert moved.nbytes >= moved.n * moved.k


def test_bad_input_is_refused():
    x, image = case("q8_0", "gauss", 0, 2, 2, 64, 1)
    w = on_host("q8_0", 64, 64, 32, image)
    y = np.empty((2, 64), np.float32)

    with pytest.raises(LayoutError):
        w.device.matmul(x[:, :32], w, y)
    x[1, 3] = np.nan
    with pytest.raises(NumericsError, match="row 1, column 3"):
        w.device.matmul(x, w, y)
    with pytest.raises(UnsupportedOp, match="only weights that an NPU had"):
        w.device.pack(QTensor.quantize(np.ones((32, 32), np.float32), "q8_0"))
