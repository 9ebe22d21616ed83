import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from npurt.errors import LayoutError, NumericsError
from npurt.quant.activations import quantize_activations

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def by_element(row):
    """Return the codes and scales of a row, element by element; round() rounds half to even."""
    codes, scales = [], []
    for start in range(0, len(row), 32):
        block = row[start : start + 32]
        amax = max(abs(value) for value in block)
        with np.errstate(all="ignore"):
            inverse = np.float32(127) / amax
        dead = amax == 0 or np.isinf(inverse)
        scales.append(0 if dead else amax / np.float32(127))
        codes += [0 if dead else round(float(value * inverse)) for value in block]
    return codes, scales


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.sampled_from([32, 96])), elements=finite)
)
def test_codes_and_scales_follow_the_rule(x):
    codes, scales = quantize_activations(x)

    assert (codes.dtype, scales.dtype) == (np.int8, np.float32)
    assert (codes.shape, scales.shape) == (x.shape, (x.shape[0], x.shape[1] // 32))
    for row, row_codes, row_scales in zip(x, codes, scales, strict=True):
        assert (row_codes.tolist(), row_scales.tolist()) == by_element(row)


@given(hnp.arrays(np.float32, (1, 32), elements=finite))
def test_the_error_is_at_most_half_a_scale(x):
    """rint() has an error of 1/2; two quotients and a product each add 2^-24 of 127 codes.

    The scale of a tiny block is subnormal, with an error of 2^-150; a block below 3.74e-37 becomes
    zero.
    """
    codes, scales = quantize_activations(x)
    bound = scales[0, 0] * (0.5 + 127 * 4 * 2.0**-24) + 127 * 2.0**-150
    lost = 3.74e-37 if scales[0, 0] == 0 else 0

    error = abs(codes * scales.astype(np.float64) - x)

    assert error.max() <= bound + lost


def test_a_block_by_hand_rounds_half_to_even():
    x = np.zeros((1, 64), np.float32)
    x[0, :7] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -127]  # scale 1
    x[0, 32] = -254  # scale 2

    codes, scales = quantize_activations(x)

    assert scales.tolist() == [[1, 2]]
    assert codes[0, :8].tolist() == [127, 0, 2, 2, 0, -2, -127, 0]
    assert codes[0, 32:34].tolist() == [-127, 0]


@pytest.mark.parametrize("amax", [0.0, 1e-45, 3.7e-37])
def test_a_block_too_small_for_a_finite_inverse_is_zero(amax):
    codes, scales = quantize_activations(np.full((1, 32), amax, np.float32))

    assert not codes.any()
    assert not scales.any()


def test_the_largest_float_quantises():
    x = np.full((1, 32), np.finfo(np.float32).max, np.float32)

    codes, scales = quantize_activations(x)

    assert (codes == 127).all()
    assert np.isfinite(scales).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_place(value):
    x = np.zeros((3, 64), np.float32)
    x[2, 40] = value

    with pytest.raises(NumericsError, match="row 2, column 40"):
        quantize_activations(x)


@pytest.mark.parametrize(
    "x", [np.zeros((1, 33), "f4"), np.zeros(32, "f4"), np.zeros((1, 32), "f8")], ids=str
)
def test_other_shapes_and_types_are_refused(x):
    with pytest.raises(LayoutError, match="multiple of 32"):
        quantize_activations(x)
