"""Tests of quantisation with weighted columns: the weighted error, and a block by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import LayoutError, NumericsError
from npurt.quant.decode import dequantize
from npurt.quant.encode import ENCODABLE, quantize
from npurt.quant.types import BY_NAME
from npurt.quant.weighted import SEARCHED, quantize_weighted

SIZES = st.sampled_from([0.0, 1e-42, 1e-30, 1e-4, 1.0, 1e4, 1e8])


def error(x, w, blocks, fmt):
    """Return the weighted squared error of each block, in float64."""
    apart = (x.astype(np.float64) - dequantize(blocks, fmt)) ** 2 * w
    return apart.reshape(len(x), -1, fmt.block).sum(axis=-1)


@pytest.mark.parametrize("name", SEARCHED)
@given(st.integers(0, 2**32 - 1), SIZES, st.sampled_from([0, 1, 4]), st.booleans())
def test_the_weighted_error_is_never_above_that_of_the_plain_encoder(
    name, seed, size, spread, shift
):
    rng, fmt = np.random.default_rng(seed), BY_NAME[name]
    x = (size * (rng.standard_normal((2, 512)) + shift)).astype(np.float32)
    w = np.exp(spread * rng.standard_normal(512)).astype(np.float32)
    try:
        plain = quantize(x, fmt)
    except NumericsError:
        with pytest.raises(NumericsError):
            quantize_weighted(x, fmt, w)
        return
    found = quantize_weighted(x, fmt, w)
    assert found.dtype == plain.dtype
    assert np.isfinite(dequantize(found, fmt)).all()
    maximum = error(x, w, plain, fmt)
    # The encoder rounds each weight and each difference to float32: 2^-23 of a square each.
    assert (error(x, w, found, fmt) <= maximum * (1 + 2.0**-21)).all()


@pytest.mark.parametrize("name", SEARCHED)
def test_the_error_of_ordinary_weights_is_clearly_smaller(name):
    """The search makes the weighted error smaller by a tenth or more for every type."""
    rng, fmt = np.random.default_rng(1), BY_NAME[name]
    x = rng.standard_normal((8, 1024)).astype(np.float32)
    w = np.exp(2 * rng.standard_normal(1024)).astype(np.float32)
    plain, found = (error(x, w, blocks, fmt).sum()
                    for blocks in (quantize(x, fmt), quantize_weighted(x, fmt, w)))  # fmt: skip
    assert found < 0.9 * plain


def test_a_block_by_hand():
    """With weight on one column only, 0.7 has the precision of float16 in a block with -8.

    Plain Q4_0 has steps of 1 here, and 0.7 becomes 1.
    """
    x = np.zeros((1, 32), np.float32)
    x[0, 0], x[0, 1] = -8, 0.7
    w = np.zeros(32, np.float32)
    w[1] = 1
    fmt = BY_NAME["q4_0"]
    assert dequantize(quantize(x, fmt), fmt)[0, 1] == 1
    found = dequantize(quantize_weighted(x, fmt, w), fmt)
    assert abs(found[0, 1] - 0.7) < 0.7 * 2.0**-11


@pytest.mark.parametrize("name", [name for name in ENCODABLE if name not in SEARCHED])
def test_other_formats_are_encoded_plainly(name):
    x = np.random.default_rng(2).standard_normal((2, 64)).astype(np.float32)
    fmt = BY_NAME[name]
    assert quantize_weighted(x, fmt, np.ones(64)).tobytes() == quantize(x, fmt).tobytes()


def test_columns_without_importance_count_alike():
    x = np.random.default_rng(3).standard_normal((2, 64)).astype(np.float32)
    for name in ("q4_0", "q5_1", "iq4_nl"):
        fmt = BY_NAME[name]
        none, same = (quantize_weighted(x, fmt, np.full(64, v)) for v in (0.0, 3.0))
        assert none.tobytes() == same.tobytes()


def test_wrong_shapes_are_refused():
    with pytest.raises(LayoutError):
        quantize_weighted(np.ones((2, 33), np.float32), BY_NAME["q4_0"], np.ones(33))
