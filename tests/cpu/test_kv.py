"""Tests of the cache of keys and values: pages of 64 positions, and the shift of a context."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cpu.state import kv

HEADS, WIDTH, PAGE = 2, 16, 64
SHUFFLED = np.array([3, 0, 4, 1], np.int32)  # four of five pages, out of order


def filled(length, dtype="f4"):
    """Return a cache, and the random keys and values in *length* positions of `SHUFFLED`."""
    keys, values = kv.allocate(5, HEADS, WIDTH, dtype)
    rng = np.random.default_rng(length)
    given = [rng.standard_normal((HEADS, length, WIDTH)).astype(keys.dtype) for _ in "kv"]
    kv.write_keys(keys, SHUFFLED, given[0])
    kv.write_values(values, SHUFFLED, given[1])
    return keys, values, *given


@pytest.mark.parametrize(("dtype", "size"), [("f2", 2), ("f4", 4)])
def test_a_cache_has_pages_of_64_positions(dtype, size):
    keys, values = kv.allocate(3, HEADS, WIDTH, dtype)

    assert keys.shape == (HEADS, 3, PAGE // 16, WIDTH, 16)
    assert values.shape == (HEADS, 3, PAGE, WIDTH)
    assert keys.nbytes + values.nbytes == 3 * kv.page_bytes(HEADS, WIDTH, dtype)
    assert kv.page_bytes(HEADS, WIDTH, dtype) == 2 * HEADS * PAGE * WIDTH * size


@given(length=st.integers(1, 256), dtype=st.sampled_from(["f2", "f4"]))
def test_what_was_written_is_read_and_lies_where_kernels_look(length, dtype):
    held, held_values, keys, values = filled(length, dtype)

    np.testing.assert_array_equal(kv.read_keys(held, SHUFFLED, length), keys)
    np.testing.assert_array_equal(kv.read_values(held_values, SHUFFLED, length), values)
    at = length - 1
    page, panel, lane = SHUFFLED[at // PAGE], at % PAGE // 16, at % 16
    np.testing.assert_array_equal(held[:, page, panel, :, lane], keys[:, at])
    np.testing.assert_array_equal(held_values[:, page, at % PAGE], values[:, at])


@given(count=st.integers(1, 64))
def test_a_copied_page_has_the_first_positions(count):
    held, held_values, keys, values = filled(100)
    kv.copy_page(held, held_values, int(SHUFFLED[0]), 2, count)

    copied = np.array([2], np.int32)
    np.testing.assert_array_equal(kv.read_keys(held, copied, count), keys[:, :count])
    np.testing.assert_array_equal(kv.read_values(held_values, copied, count), values[:, :count])
    np.testing.assert_array_equal(kv.read_keys(held, SHUFFLED, 100), keys)


def rotate(keys, radians, positions, halves):
    """Return *keys* ``[..., P, W]`` rotated by *positions*, pair by pair, as complex numbers."""
    pairs = len(radians)
    first = slice(0, pairs) if halves else slice(0, 2 * pairs, 2)
    second = slice(pairs, 2 * pairs) if halves else slice(1, 2 * pairs, 2)
    turned = keys.copy()
    z = (keys[..., first] + 1j * keys[..., second]) * np.exp(1j * np.outer(positions, radians))
    turned[..., first], turned[..., second] = z.real, z.imag
    return turned


@given(
    length=st.integers(1, 256),
    keep=st.integers(0, 140),
    drop=st.integers(0, 200),
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
    held, held_values, keys, values = filled(length, dtype)
    radians = 10000.0 ** (-np.arange(pairs) / pairs)
    angles = np.outer(np.arange(257), radians)
    tables = [(f(angles) * factor).astype(np.float32) for f in (np.cos, np.sin)]

    kv.shift(held, held_values, SHUFFLED, *tables, halves=halves, keep=keep, drop=drop, end=length)

    end = length - drop
    moved_values = kv.read_values(held_values, SHUFFLED, end)
    np.testing.assert_array_equal(moved_values[:, :keep], values[:, :keep])
    np.testing.assert_array_equal(moved_values[:, keep:], values[:, keep + drop :])
    moved = kv.read_keys(held, SHUFFLED, end)
    np.testing.assert_array_equal(moved[:, :keep], keys[:, :keep])
    moving = keys[:, keep + drop :].astype(np.float64)
    wanted = rotate(moving, radians, [-drop] * moving.shape[1], halves)
    # The bound of two quotients, two products and a sum in float32 of keys below 5, and of the
    # rounding to the cache's type.
    bound = 10 * 5 * 2.0**-24 + (5 * 2.0**-11 if dtype == "f2" else 0)
    np.testing.assert_allclose(moved[:, keep:], wanted, rtol=0, atol=bound)
