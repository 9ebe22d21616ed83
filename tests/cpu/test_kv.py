"""Keys and values lie in panels of 16 positions, and move down when a context is shifted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cpu import kv
from tests.cpu.cases import lines, panels

HEADS, WIDTH = 2, 16


def filled(n_ctx, length, dtype="f4"):
    """Return a cache of random keys and values in *length* positions, and those."""
    keys, values = kv.allocate(HEADS, n_ctx, WIDTH, dtype)
    rng = np.random.default_rng(length)
    given = [rng.standard_normal(values.shape).astype(np.float32) for _ in "kv"]
    keys[:] = panels(given[0])
    values[:] = given[1]
    return keys, values, lines(keys).astype(np.float64), values.copy()


@pytest.mark.parametrize(("n_ctx", "padded"), [(1, 16), (16, 16), (17, 32), (100, 112)])
@pytest.mark.parametrize(("dtype", "size"), [("f2", 2), ("f4", 4)])
def test_a_cache_has_room_for_its_positions_in_panels_of_16(n_ctx, padded, dtype, size):
    keys, values = kv.allocate(HEADS, n_ctx, WIDTH, dtype)

    assert keys.shape == (HEADS, padded // 16, WIDTH, 16)
    assert values.shape == (HEADS, padded, WIDTH)
    assert keys.nbytes + values.nbytes == 2 * HEADS * padded * WIDTH * size


def rotate(keys, radians, positions, halves):
    """Return *keys* ``[..., P, W]`` turned by *positions*, pair by pair, as complex numbers."""
    pairs = len(radians)
    first = slice(0, pairs) if halves else slice(0, 2 * pairs, 2)
    second = slice(pairs, 2 * pairs) if halves else slice(1, 2 * pairs, 2)
    turned = keys.copy()
    z = (keys[..., first] + 1j * keys[..., second]) * np.exp(1j * np.outer(positions, radians))
    turned[..., first], turned[..., second] = z.real, z.imag
    return turned


@given(
    length=st.integers(1, 40),
    keep=st.integers(0, 5),
    drop=st.integers(0, 40),
    pairs=st.sampled_from([WIDTH // 2, WIDTH // 4]),
    halves=st.booleans(),
    factor=st.sampled_from([1.0, 1.3]),
    dtype=st.sampled_from(["f2", "f4"]),
)
def test_a_shift_moves_values_down_and_turns_keys_back(
    length, keep, drop, pairs, halves, factor, dtype
):
    keep = min(keep, length)
    drop = min(drop, length - keep)
    held, held_values, keys, values = filled(40, length, dtype)
    radians = 10000.0 ** (-np.arange(pairs) / pairs)
    angles = np.outer(np.arange(41), radians)
    tables = [(f(angles) * factor).astype(np.float32) for f in (np.cos, np.sin)]

    kv.shift(held, held_values, *tables, halves=halves, keep=keep, drop=drop, end=length)

    end = length - drop
    np.testing.assert_array_equal(held_values[:, :keep], values[:, :keep])
    np.testing.assert_array_equal(held_values[:, keep:end], values[:, keep + drop : length])
    moved = lines(held)
    np.testing.assert_array_equal(moved[:, :keep], keys[:, :keep])
    moving = keys[:, keep + drop : length]
    wanted = rotate(moving, radians, [-drop] * moving.shape[1], halves)
    # Two quotients, two products and a sum in float32 of keys below 5, then the cache's own type.
    bound = 10 * 5 * 2.0**-24 + (5 * 2.0**-11 if dtype == "f2" else 0)
    np.testing.assert_allclose(moved[:, keep:end], wanted, rtol=0, atol=bound)
