"""Tests of the ops other than matmul in every kernel set, against float64 with derived bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.quant.activations import quantize_activations
from tests import oracle
from tests.cpu import cases, delta_oracle
from tests.cpu.foreign import same

# npurt_block in npurt_cpu.h: scale, sum, minus, unused, sums of 16, minuses of 16
BLOCK = np.dtype([("scale", "f4"), ("sum", "f4"), ("minus", "i4"), ("unused", "i4"),
                  ("sums", "f4", 2), ("minuses", "i4", 2)])  # fmt: skip

EVERY = (*cases.INTEGER, *cases.DENSE)

widths = st.sampled_from([1, 15, 16, 17, 32, 40, 96, 288, 1056])
seeds = st.integers(0, 2**32)


def assert_quantised(values, codes, blocks, remainders=None):
    """Check codes and scales against the specification, and the other fields of each block.

    With remainders, the fields are those of 255 * code + remainder, in units of a 255th of the
    scale.
    """
    want_codes, want_scales = quantize_activations(values)
    numbers = codes
    if remainders is not None:
        numbers, want_scales = 255 * codes.astype(np.int32) + remainders, want_scales / 255
    np.testing.assert_array_equal(codes, want_codes)
    same(blocks.view(BLOCK)["scale"], want_scales)
    assert_follows(numbers, blocks)


def assert_follows(numbers, blocks):
    """Check that the sums and minuses of *blocks* are those of *numbers*."""
    blocks = blocks.view(BLOCK)
    halves = numbers.reshape(*blocks.shape, 2, 16).sum(axis=-1, dtype=np.int32)
    whole = halves.sum(axis=-1, dtype=np.int32)
    np.testing.assert_array_equal(blocks["minuses"], -halves)
    np.testing.assert_array_equal(blocks["minus"], -whole)
    with np.errstate(over="ignore"):
        same(blocks["sum"], blocks["scale"] * whole.astype(np.float32))
        same(blocks["sums"], blocks["scale"][..., None] * halves.astype(np.float32))


# --- Quantising ---------------------------------------------------------------------------------


@given(m=st.integers(1, 4), blocks=st.integers(1, 40), seed=seeds)
def test_quantising_is_what_the_specification_says(run, m, blocks, seed):
    x = cases.activations(cases.rng_of(seed), m, 32 * blocks)

    assert_quantised(x, *run(lambda program: cases.quantise(program, x)))


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=32, max_size=32)
)
def test_any_finite_block_quantises_as_specified(run, values):
    x = np.array([values], np.float32)

    assert_quantised(x, *run(lambda program: cases.quantise(program, x)))


def test_halves_round_to_even(run):
    x = np.zeros((1, 32), np.float32)
    x[0, :7] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -127]

    codes, _ = run(lambda program: cases.quantise(program, x))

    assert codes[0, :8].tolist() == [127, 0, 2, 2, 0, -2, -127, 0]


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=32, max_size=32)
)
def test_remainders_hold_what_codes_leave_over(run, values):
    x = np.array([values], np.float32)

    codes, blocks, remainders = run(lambda p: cases.quantise(p, x, int16=True))

    assert_quantised(x, codes, blocks, remainders)
    scales = blocks.view(BLOCK)["scale"]
    held, bound = oracle.int16_activations(codes, remainders, scales)
    oracle.assert_within(x * (scales > 0), held, bound)


def test_remainders_never_reach_128(run):
    """Kernels rely on this.  Half a scale is 127.5 of its 255ths."""
    x = np.zeros((1, 32), np.float32)
    x[0, :5] = [127, 0.5, 1.5, -0.5, -1.5]

    codes, _, remainders = run(lambda program: cases.quantise(program, x, int16=True))

    assert codes[0, :5].tolist() == [127, 0, 2, 0, -2]
    assert remainders[0, :5].tolist() == [0, 127, -127, -127, 127]


def test_remainders_are_zero_where_their_factor_overflows(run):
    """127 / 1e-36 fits float32, but 255 times the quotient does not."""
    x = np.zeros((1, 32), np.float32)
    x[0, :2] = [1e-36, 1e-39]

    codes, _, remainders = run(lambda program: cases.quantise(program, x, int16=True))

    assert codes[0, 0] == 127
    assert not remainders.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_has_no_scale_and_codes_of_zero(run, value):
    """The codes are set to zero because machines convert NaN to different integers."""
    x = np.ones((1, 96), np.float32)
    x[0, 40] = value

    codes, blocks = run(lambda program: cases.quantise(program, x))

    scales = blocks.view(BLOCK)["scale"][0]
    assert np.isnan(scales).tolist() == [False, True, False]
    assert (codes.reshape(3, 32) == [[127], [0], [127]]).all()


# --- Norm ---------------------------------------------------------------------------------------


@given(m=st.integers(1, 4), k=widths, exponent=st.integers(-12, 12), seed=seeds)
def test_norm_lies_within_its_rounding(run, m, k, exponent, seed):
    rng = cases.rng_of(seed)
    x = (10.0**exponent * rng.standard_normal((m, k))).astype(np.float32)
    gain = rng.standard_normal(k, dtype=np.float32)

    residual, y, *quantised = run(lambda program: cases.norm(program, x, gain, 1e-5))

    oracle.assert_within(y, *oracle.norm(x, gain, 1e-5))
    np.testing.assert_array_equal(residual, x)
    if quantised:
        assert_quantised(y, *quantised)


def test_norm_adds_first_and_keeps_the_sum(run):
    rng = cases.rng_of("add")
    x, more = rng.standard_normal((2, 3, 96), dtype=np.float32)
    gain = np.ones(96, np.float32)

    residual, y, *_ = run(lambda program: cases.norm(program, x, gain, 1e-6, more))

    same(residual, x + more)
    oracle.assert_within(y, *oracle.norm(x + more, gain, 1e-6))


def test_norm_of_the_last_rows_is_the_end_of_the_whole(run):
    rng = cases.rng_of("head")
    x, gain = rng.standard_normal((5, 64), dtype=np.float32), rng.standard_normal(64, dtype="f4")
    whole = run(lambda program: cases.norm(program, x, gain, 1e-5))

    last = run(lambda program: cases.norm(program, x, gain, 1e-5, None, 3))

    for have, want in zip(last[1:], whole[1:], strict=True):
        same(have, want[3:])


def test_norm_of_zeros_is_zero(run):
    zeros = np.zeros((1, 32), np.float32)

    assert not run(lambda program: cases.norm(program, zeros, zeros[0] + 1, 1e-5))[1].any()


# --- SiLU ---------------------------------------------------------------------------------------


@given(m=st.integers(1, 3), k=st.sampled_from([1, 16, 17, 40, 96, 1056, 2080]), seed=seeds)
def test_silu_lies_within_its_rounding(run, m, k, seed):
    rng = cases.rng_of(seed)
    gate_up = (10.0 ** rng.uniform(-3, 2.2) * rng.standard_normal((m, 2 * k))).astype(np.float32)

    y, *quantised = run(lambda program: cases.unit(program, gate_up))

    oracle.assert_within(y, *oracle.silu(gate_up[:, :k], gate_up[:, k:]))
    if quantised:
        assert_quantised(y, *quantised)


def test_silu_far_out_is_the_gate_or_nothing(run):
    gate = np.array([0, -0.0, 88, 200, 3e38, -87.3, -88, -104, -1e30, -3e38], np.float32)
    gate_up = np.concatenate([gate, np.ones_like(gate)])[None]

    (y,) = run(lambda program: cases.unit(program, gate_up))

    same(y[0, :5], gate[:5])
    assert (abs(y[0, 5:]) < 1e-35).all()
    assert np.isnan(run(lambda program: cases.unit(program, gate_up * np.float32("nan")))[0]).all()


# --- RoPE ---------------------------------------------------------------------------------------

layers = st.fixed_dictionaries(
    {
        "kv_heads": st.sampled_from([1, 2]),
        "width": st.sampled_from([16, 48, 64, 128]),
        "halves": st.booleans(),
        "dtype": st.sampled_from([np.float16, np.float32]),
    }
)
positions = st.sampled_from([0, 1, 14, 15, 16, 62, 63, 64, 127, 130])
batches = st.sampled_from([1, 2, 7, 33])


def layer_of(draw, shape, rows, position):
    """Return the attention of one layer, with random buffers and a filled cache."""
    group, part = draw(st.sampled_from([1, 3, 8])), draw(st.sampled_from([4, 2, 1]))
    rng = cases.rng_of(draw(seeds))
    more = {"n_heads": group * shape["kv_heads"], "rotated": shape["width"] // part}
    return cases.heads(rng, rows, position, **shape, **more)


@given(st.data(), layers, positions, batches)
def test_rope_rotates_pairs_and_appends_to_the_cache(run, data, shape, position, rows):
    layer = layer_of(data.draw, shape, rows, position)
    before = layer.qkv.copy().reshape(rows, -1, layer.width)
    rotated = layer.cos.shape[1] * 2
    pair = (slice(0, rotated // 2), slice(rotated // 2, rotated))
    if not layer.halves:
        pair = (slice(0, rotated, 2), slice(1, rotated, 2))
    turning = layer.heads + layer.kv_heads  # of the heads in a row: q, then k, then v
    here = slice(position, position + rows)
    cos, sin = layer.cos[here, None], layer.sin[here, None]
    (a, b), bounds = oracle.rotate(*(before[:, :turning, p] for p in pair), cos, sin)
    old_keys, old_values = cases.lines(layer.k_cache), cases.unpaged(layer.v_cache)

    qkv, k_cache, v_cache = run(lambda program: cases.rope(program, layer, position))

    after = qkv.reshape(rows, -1, layer.width)
    oracle.assert_within(after[:, :turning, pair[0]], a, bounds[0])
    oracle.assert_within(after[:, :turning, pair[1]], b, bounds[1])
    same(after[..., rotated:], before[..., rotated:])
    same(after[:, turning:], before[:, turning:])
    keys, values = cases.lines(k_cache), cases.unpaged(v_cache)
    wide = after[:, layer.heads :].transpose(1, 0, 2).astype(k_cache.dtype)
    same(keys[:, here], wide[: layer.kv_heads])
    same(values[:, here], wide[layer.kv_heads :])
    keys[:, here], values[:, here] = old_keys[:, here], old_values[:, here]
    same(keys, old_keys)
    same(values, old_values)


@given(positions, batches, st.sampled_from([16, 48, 64, 128, 256]), seeds, st.booleans())
def test_heads_are_normed_before_they_rotate(run, position, rows, width, seed, gated):
    shape = {"n_heads": 4, "kv_heads": 2, "width": width, "rotated": width // 2, "halves": True}
    layer = cases.heads(
        cases.rng_of(seed), rows, position, **shape, dtype=np.float32, gated=gated, normed=True
    )
    layer.qkv[:] *= np.float32(10.0 ** -(seed % 5))  # small enough that epsilon matters, too
    at = np.s_[4:6] if not gated else np.s_[8:10]  # the keys follow the queries and their gates
    steps = {"q": np.s_[: 8 if gated else 4 : 1 + gated], "k": at}
    before = layer.qkv.copy().reshape(rows, -1, width)
    here, pairs = np.s_[position : position + rows], width // 4
    cos, sin = layer.cos[here, None].astype(np.float64), layer.sin[here, None].astype(np.float64)

    after, k_cache, v_cache = run(lambda program: cases.rope(program, layer, position))

    after = after.reshape(before.shape)
    for name, heads in steps.items():
        flat = before[:, heads].reshape(-1, width)
        weight = layer.q_norm if name == "q" else layer.k_norm
        normed, off = (v.reshape(rows, -1, width) for v in oracle.norm(flat, weight, 1e-6))
        a, b = normed[..., :pairs], normed[..., pairs : 2 * pairs]
        a_off, b_off = off[..., :pairs], off[..., pairs : 2 * pairs]
        (first, second), bounds = oracle.rotate(a, b, cos, sin)
        moved = (abs(cos) * a_off + abs(sin) * b_off, abs(sin) * a_off + abs(cos) * b_off)
        turned = after[:, heads]
        oracle.assert_within(turned[..., :pairs], first, 1.01 * (bounds[0] + moved[0]))
        oracle.assert_within(turned[..., pairs : 2 * pairs], second, 1.01 * (bounds[1] + moved[1]))
        rest = np.s_[..., 2 * pairs :]
        oracle.assert_within(turned[rest], normed[rest], off[rest])
    same(cases.lines(k_cache)[:, here], after[:, at].transpose(1, 0, 2))
    same(cases.unpaged(v_cache)[:, here], before[:, at.stop :].transpose(1, 0, 2))
    if gated:
        same(after[:, 1:8:2], before[:, 1:8:2])


# --- Attention ----------------------------------------------------------------------------------


def reference(layer, position):
    """Return the exact attention and its bound, ``[rows, heads * width]`` each."""
    rows, group = len(layer.qkv), layer.heads // layer.kv_heads
    q = layer.qkv.reshape(rows, -1, layer.width)
    keys, values = cases.lines(layer.k_cache), cases.unpaged(layer.v_cache)
    pairs = []
    for row in range(rows):
        at = position + row
        first = max(0, at + 1 - layer.window) if layer.window else 0
        factor = 1.0 if layer.temperature is None else float(layer.temperature[at])
        for head in range(layer.heads):
            here = head // group, slice(first, at + 1)
            scale = factor * float(np.float32(layer.scale))
            sink = None if layer.sinks is None else layer.sinks[head]
            options = {"softcap": layer.softcap, "sink": sink}
            pairs.append(oracle.attend(q[row, head], keys[here], values[here], scale, **options))
    shape = (rows, layer.heads * layer.width)
    return tuple(np.concatenate(part).reshape(shape) for part in zip(*pairs, strict=True))


@given(st.data(), layers, positions, batches)
def test_attention_lies_within_its_rounding(run, data, shape, position, rows):
    layer = layer_of(data.draw, shape, rows, position)

    (out,) = run(lambda program: cases.attend(program, layer, position))

    oracle.assert_within(out, *reference(layer, position))


@given(positions, batches, seeds)
def test_a_gate_multiplies_the_result_of_its_head(run, position, rows, seed):
    shape = {"n_heads": 4, "kv_heads": 2, "width": 48, "rotated": 48, "halves": True}
    gated = cases.heads(cases.rng_of(seed), rows, position, **shape, dtype=np.float32, gated=True)
    heads = gated.qkv.reshape(rows, -1, 48)
    queries, gates = heads[:, :8:2], (8 * heads[:, 1:8:2]).astype(np.float32)
    heads[:, 1:8:2] = gates
    plain_qkv = np.concatenate([queries, heads[:, 8:]], axis=1).reshape(rows, -1)
    layer = cases.Heads(**(fields(gated) | {"qkv": plain_qkv.copy(), "gated": False}))
    (plain,) = run(lambda program: cases.attend(program, layer, position))

    (out,) = run(lambda program: cases.attend(program, gated, position))

    opened, off = delta_oracle.sigmoid(gates.reshape(rows, -1).astype(np.float64))
    bound = 1.01 * abs(plain) * (off + oracle.U * opened) + oracle.TINY
    oracle.assert_within(out, plain * opened, bound)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("position", [0, 15, 57, 63, 100])
@pytest.mark.parametrize("window", [0, 3, 20, 64, 90])
def test_attention_of_a_row_does_not_depend_on_its_batch(run, dtype, position, window):
    shape = {"n_heads": 6, "kv_heads": 2, "width": 64, "rotated": 64, "halves": True}
    if window:
        shape |= {"window": window, "softcap": 2.0, "sinks": window == 20, "temperature": True}
    layer = cases.heads(cases.rng_of(position), 40, position, **shape, dtype=dtype)
    qkv = layer.qkv.copy()
    (together,) = run(lambda program: cases.attend(program, layer, position))

    for row in (0, 1, 8, 31, 39):
        layer.qkv[:1] = qkv[row]
        one = cases.Heads(**{**fields(layer), "qkv": layer.qkv[:1]})
        (alone,) = run(lambda program, one=one, row=row: cases.attend(program, one, position + row))
        same(alone[0], together[row])


def fields(layer):
    return {name: getattr(layer, name) for name in layer.__slots__}


def test_attention_does_not_see_the_future(run):
    """Later positions of the cache, even with NaN, do not change the result."""
    shape = {"n_heads": 2, "kv_heads": 1, "width": 32, "rotated": 32, "halves": True}
    layer = cases.heads(cases.rng_of("future"), 1, 20, **shape, dtype=np.float32)
    (before,) = run(lambda program: cases.attend(program, layer, 20))
    before = before.copy()
    keys, values = cases.lines(layer.k_cache), cases.unpaged(layer.v_cache)
    keys[:, 21:] = values[:, 21:] = np.nan
    layer.k_cache[:], layer.v_cache[:] = cases.panels(keys), cases.paged(values)

    (after,) = run(lambda program: cases.attend(program, layer, 20))

    same(after, before)


def test_scores_that_would_overflow_an_exponential_do_not(run):
    """Scores of +-1e4 differ by more than 88, the limit of e^x: the softmax selects the largest."""
    shape = {"n_heads": 1, "kv_heads": 1, "width": 16, "rotated": 16, "halves": True}
    layer = cases.heads(cases.rng_of("large"), 1, 100, **shape, dtype=np.float32)
    layer.qkv[:] = 0
    layer.qkv[0, 0] = 1
    values = cases.unpaged(layer.v_cache)
    keys = np.zeros_like(values)
    keys[0, :101, 0] = np.linspace(-4e4, 4e4, 101)[np.argsort(cases.rng_of(1).random(101))]
    layer.k_cache[:] = cases.panels(keys)

    (out,) = run(lambda program: cases.attend(program, layer, 100))

    same(out[0], values[0, keys[0, :101, 0].argmax()])


# --- Transposed matvec ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fmt", "n"), [*((fmt, 37) for fmt in EVERY), ("q4_k", 1050), ("f32", 1050)]
)
def test_spread_is_the_transposed_product(run, fmt, n):
    """The product is also right with more panels than are summed in float32."""
    k = 512
    rng = cases.rng_of(fmt)
    w = cases.weight(rng, fmt, n, k, np.array([0.01, -0.5, 1], np.float16))
    if fmt in cases.DENSE:
        w = cases.QTensor.quantize(rng.standard_normal((n, k)), fmt)
    r = rng.standard_normal(n, dtype=np.float32).astype(np.float64)
    reference, bound, minimum = oracle.transposed_matvec(w, r)

    s, squares = run(lambda program: cases.transposed_matvec(program, w, r))

    oracle.assert_within(s, reference, bound)
    records = minimum.reshape(-1, 256).sum(axis=1)
    oracle.assert_within(squares, records, oracle.gamma(2 * 32 + 5 + 6) * records)


def test_spread_of_many_rows_is_added_up_in_float64(run):
    """2^24 + 1 is 2^24 in float32: with sums in float64, at most 63 of all ones are lost."""
    n = 16 * 200
    w = cases.QTensor.quantize(np.ones((n, 256)), "f32")
    r = np.ones(n)
    r[0] = 2**24

    s, _ = run(lambda program: cases.transposed_matvec(program, w, r))

    assert (abs(s - r.sum()) < 64).all()
