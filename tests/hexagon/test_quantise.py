"""Test that activations after the DSP's rounding are close to x, for every finite float32.

The oracle is x in float64; dsp/kernels/quantise_row.h gives the largest error of a code.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.hexagon.layout.quantise import GROUPS, quantise

GREATEST = np.finfo(np.float32).max
EDGES = [
    2.0**-149,  # the least subnormal number
    2.0**-126 - 2.0**-149,  # the greatest
    2.0**-126,
    np.nextafter(2.0**-87, 0, dtype=np.float32),  # rows below 2^-87 are lifted
    2.0**-87,
    1.0,
    1.69e38,  # the largest mantissas of the second largest exponent round up to the largest one
    2.0**127,
    3.3e38,
    3.36e38,
    GREATEST,
]


def bound(x, group):
    """Return the largest allowed error of a value.

    The error of a code is half a unit plus the error of 15 bits of x and of the unit's inverse,
    together below 0.55 units.  A unit is (V / 508 + V / 2^16 + V / 2^23 + 1) / 4 times the unit of
    V, where V is the largest value of a group.  V / 126 plus 2^-20 of the row's largest is above.
    """
    k = x.shape[1]
    count = group or k
    starts = np.arange(0, k, count)
    greatest = np.maximum.reduceat(abs(x).astype(np.float64), starts, axis=1)
    of_group = np.repeat(greatest, count, axis=1)[:, :k]
    return 0.55 * (of_group / 126 + 2.0**-20 * abs(x).max(axis=1, keepdims=True).astype(np.float64))


def assert_near(x, group):
    rounded = quantise(x, group)
    assert (abs(rounded.values() - x.astype(np.float64)) <= bound(x, group)).all()
    assert abs(rounded.codes.astype(int)).max() <= 127
    assert (rounded.scales >= 1).all()
    assert (rounded.scales < 1 << 15).all()


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("greatest", EDGES)
def test_a_row_of_any_size_keeps_it(greatest, group):
    x = np.random.default_rng(0).uniform(-1, 1, (4, 256)) * greatest
    x[:, 7] = -greatest

    assert_near(x.astype(np.float32), group)


@given(
    st.integers(0, 2**32 - 1),
    st.floats(-149, 127.99),
    st.floats(0, 300),
    st.sampled_from(GROUPS),
)
def test_any_finite_row_is_near_what_is_multiplied(seed, power, span, group):
    """Magnitudes are log-uniform over *span* powers of two, down from 2^power."""
    rng = np.random.default_rng(seed)
    x = np.exp2(power - span * rng.random((3, 160))) * rng.choice([-1.0, 0.0, 1.0], (3, 160))

    assert_near(x.astype(np.float32), group)


def test_known_values():
    """The largest value of a row has the code 127, for any size; zeros remain zeros."""
    for size in (0.0, 2.0**-149, 2.0**-100, 1.0, 2.0**127):
        x = np.zeros((1, 32), np.float32)
        x[0, :2] = size, -size

        values = quantise(x).values()

        np.testing.assert_allclose(values[0, :2], [size, -size], rtol=0.001)
        assert not values[0, 2:].any()
