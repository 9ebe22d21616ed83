"""The cache holds what the context allows, forgets from the end, and moves down when shifted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import ContextFull, SettingError
from npurt.llm.state.cache import Cache
from tests.cpu.cases import lines, panels
from tests.llm.test_rope import CONFIG

LAYERS, HEADS, WIDTH = CONFIG.n_layers, CONFIG.n_kv_heads, CONFIG.head_width


def filled(n_ctx, length, dtype="f32"):
    """Return a cache of random keys and values in *length* positions, and those."""
    cache = Cache(CONFIG, n_ctx, dtype)
    rng = np.random.default_rng(length)
    padded = cache.values[0].shape[1]
    keys, values = (rng.standard_normal((HEADS, padded, WIDTH)).astype(np.float32) for _ in "kv")
    cache.keys[0][:] = panels(keys)
    cache.values[0][:] = values
    cache.length = length
    return cache, lines(cache.keys[0]).astype(np.float64), cache.values[0].copy()


@pytest.mark.parametrize(("n_ctx", "padded"), [(1, 16), (16, 16), (17, 32), (100, 112)])
@pytest.mark.parametrize(("dtype", "size"), [("f16", 2), ("f32", 4)])
def test_a_cache_has_room_for_its_positions_in_panels_of_16(n_ctx, padded, dtype, size):
    cache = Cache(CONFIG, n_ctx, dtype)

    assert cache.keys[0].shape == (HEADS, padded // 16, WIDTH, 16)
    assert cache.values[0].shape == (HEADS, padded, WIDTH)
    assert cache.nbytes == 2 * LAYERS * HEADS * padded * WIDTH * size
    assert (cache.length, cache.n_ctx) == (0, n_ctx)


@pytest.mark.parametrize("n_ctx", [0, -5, (1 << 22) + 1])
def test_a_context_that_cannot_be_had_is_refused(n_ctx):
    with pytest.raises(SettingError, match=f"{n_ctx} tokens"):
        Cache(CONFIG, n_ctx)


def test_an_element_type_that_does_not_exist_is_refused():
    with pytest.raises(SettingError, match="q8_0"):
        Cache(CONFIG, 16, "q8_0")


@given(st.integers(1, 100), st.integers(0, 100), st.integers(0, 100))
def test_there_is_room_until_there_is_none(n_ctx, length, count):
    cache = Cache(CONFIG, n_ctx)
    cache.length = length = min(length, n_ctx)
    if length + count <= n_ctx:
        cache.require(count)
    else:
        with pytest.raises(ContextFull, match=f"{length} of {n_ctx}"):
            cache.require(count)


@given(st.integers(0, 50), st.integers(0, 60))
def test_truncating_forgets_from_the_end_only(length, keep):
    cache = Cache(CONFIG, 50)
    cache.length = length

    cache.truncate(keep)

    assert cache.length == min(length, keep)


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
    dtype=st.sampled_from(["f16", "f32"]),
)
def test_a_shift_moves_values_down_and_turns_keys_back(
    length, keep, drop, pairs, halves, factor, dtype
):
    keep = min(keep, length)
    drop = min(drop, length - keep)
    cache, keys, values = filled(40, length, dtype)
    radians = 10000.0 ** (-np.arange(pairs) / pairs)
    angles = np.outer(np.arange(41), radians)
    tables = [(f(angles) * factor).astype(np.float32) for f in (np.cos, np.sin)]

    cache.shift(keep, drop, [tuple(tables)] * len(cache.keys), halves=halves)

    end = length - drop
    assert cache.length == end
    np.testing.assert_array_equal(cache.values[0][:, :keep], values[:, :keep])
    np.testing.assert_array_equal(cache.values[0][:, keep:end], values[:, keep + drop : length])
    moved = lines(cache.keys[0])
    np.testing.assert_array_equal(moved[:, :keep], keys[:, :keep])
    moving = keys[:, keep + drop : length]
    wanted = rotate(moving, radians, [-drop] * moving.shape[1], halves)
    # Two quotients, two products and a sum in float32 of keys below 5, then the cache's own type.
    bound = 10 * 5 * 2.0**-24 + (5 * 2.0**-11 if dtype == "f16" else 0)
    np.testing.assert_allclose(moved[:, keep:end], wanted, rtol=0, atol=bound)
