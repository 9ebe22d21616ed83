"""Test that the bound of the DSP's rounding holds, and that it is close to the real error.

The bound is compared with the integer model of the kernels.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.hexagon.layout import error_bound, images, quantise
from npurt.hexagon.layout.formats import BY_NAME
from npurt.quant.encode import quantize
from npurt.quant.tensor import QTensor
from npurt.quant.types import find
from tests.hexagon import model

KINDS = {  # one format a kernel
    "q4": "q4_0",
    "q4_offset": "q4_1",
    "lut": "iq4_nl",
    "q8": "q8_0",
    "q8_offset": "q5_1",
    "q8_g16": "q6_k",
    "q16": "f16",
}
SHAPES = {
    "gaussian": lambda rng, m, k: rng.standard_normal((m, k)),
    "outliers": lambda rng, m, k: (
        rng.standard_normal((m, k)) * np.where(rng.random(k) < 0.01, 90, 1)
    ),
    "constant": lambda rng, m, k: np.ones((m, k)),
    "spread": lambda rng, m, k: rng.standard_normal((m, k)) * 10.0 ** rng.uniform(-4, 4, (m, k)),
    "sparse": lambda rng, m, k: rng.standard_normal((m, k)) * (rng.random((m, k)) < 0.02),
    "positive": lambda rng, m, k: abs(rng.standard_normal((m, k))),
}


def weights(kind, n, k, seed):
    """Return a tensor of the format, of random blocks if the format has no encoder."""
    rng = np.random.default_rng(seed)
    return QTensor(quantize(rng.standard_normal((n, k)).astype(np.float32), find(kind)), kind)


def measured(kind, x, tensor):
    """Return errors over the bound's standard error, ``[M, N]``."""
    fmt = BY_NAME[kind]
    n, k = tensor.shape
    image = images.pack(tensor)
    held = images.unpack(image, fmt, n, k)
    rounded = quantise.quantise(x)
    y = model.product(rounded, held, kind).astype(np.float64)
    exact = rounded.values().astype(np.float64) @ images.multiplied(image, fmt, n, k).T.astype(
        float
    )
    unit = error_bound.magnitudes(rounded)[:, None] * error_bound.error(held, fmt)
    assert ((unit > 0) | (y == exact)).all()
    return (y - exact) / np.where(unit > 0, unit, 1)


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("shape", SHAPES)
def test_no_error_is_beyond_eight_standard_errors(kind, shape):
    rng = np.random.default_rng(7)
    x = SHAPES[shape](rng, 6, 1536).astype(np.float32)

    errors = measured(kind, x, weights(kind, 96, 1536, 1))

    assert abs(errors).max() < 8


@pytest.mark.parametrize("kind", KINDS.values())
def test_the_bound_is_near_what_happens_to_ordinary_numbers(kind):
    """The error is at least a tenth of the bound; a looser bound would accept wrong results."""
    x = np.random.default_rng(8).standard_normal((6, 1536)).astype(np.float32)

    errors = measured(kind, x, weights(kind, 96, 1536, 1))

    assert 0.1 < np.sqrt((errors**2).mean()) < 1.5


@given(
    st.sampled_from(sorted(KINDS.values())),
    st.sampled_from(sorted(SHAPES)),
    st.integers(1, 12),
    st.integers(-100, 60),
    st.integers(0, 2**32 - 1),
)
def test_the_bound_holds_for_any_length_size_and_kind_of_numbers(kind, shape, steps, power, seed):
    k = 256 * steps
    x = SHAPES[shape](np.random.default_rng(seed), 2, k)
    x = np.ldexp(x, power).astype(np.float32)

    assert abs(measured(kind, x, weights(kind, 32, k, seed))).max() < 8


def test_the_bound_holds_for_a_scale_a_row():
    """Only the result is rounded, to float32; the error is at most 2^-24 of it, and here close."""
    rng = np.random.default_rng(9)
    codes = rng.integers(-127, 128, (64, 512)).astype(np.int8)
    image = images.pack_i8(codes, rng.uniform(1, 2, 64).astype(np.float32))
    held = images.unpack(image, BY_NAME["i8"], 64, 512)
    rounded = quantise.quantise(rng.standard_normal((8, 512)).astype(np.float32), 0)

    y = model.product(rounded, held, "i8").astype(np.float64)
    weights = images.multiplied(image, BY_NAME["i8"], 64, 512).astype(np.float64)
    unit = error_bound.magnitudes(rounded, 0)[:, None] * error_bound.error(held, BY_NAME["i8"])
    errors = (y - rounded.values().astype(np.float64) @ weights.T) / unit

    assert abs(errors).max() < 8
    assert np.sqrt((errors**2).mean()) > 1e-4


def test_rows_of_zeros_have_no_error():
    x = np.zeros((2, 256), np.float32)
    assert (error_bound.magnitudes(quantise.quantise(x)) == 0).all()
    assert (measured("q8_0", x, weights("q8_0", 32, 256, 0)) == 0).all()


def test_a_known_magnitude():
    """A row with one 1.0 has code 127 and scale 2^e / 127; 127 2^15 2^exponent is near 2."""
    x = np.zeros((1, 64), np.float32)
    x[0, 3] = 1
    rounded = quantise.quantise(x)
    (magnitude,) = error_bound.magnitudes(rounded)

    assert magnitude == abs(rounded.codes).max() * 2.0 ** (15 + int(rounded.exponents[0]))
    assert 1 <= magnitude <= 2.02
