"""Tests of optional ops: units, scaled sums, caps, windows, sinks and convolutions.

Each op runs in every kernel set and is compared with float64 by derived bounds, as in test_ops.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cpu.pool.operands import UnitParameters
from tests import oracle
from tests.cpu import cases
from tests.cpu.foreign import same
from tests.cpu.test_ops import (
    assert_quantised,
    batches,
    fields,
    positions,
    reference,
    seeds,
    widths,
)

# --- Gated units --------------------------------------------------------------------------------


@given(m=st.integers(1, 3), k=st.sampled_from([1, 16, 17, 96, 1056]), seed=seeds)
def test_gelu_lies_within_its_rounding(run, m, k, seed):
    rng = cases.rng_of(seed)
    gate_up = (10.0 ** rng.uniform(-3, 2.2) * rng.standard_normal((m, 2 * k))).astype(np.float32)

    y, *quantised = run(lambda program: cases.unit(program, gate_up, UnitParameters("GELU")))

    oracle.assert_within(y, *oracle.gelu(gate_up[:, :k], gate_up[:, k:]))
    if quantised:
        assert_quantised(y, *quantised)


def test_gelu_of_known_values(run):
    """The expected values are those of the tanh form, computed with 50 digits."""
    gate = np.array([0, 1, -1, 3, -3, 1e13, -1e13], np.float32)
    gate_up = np.concatenate([gate, np.ones_like(gate)])[None]

    (y,) = run(lambda program: cases.unit(program, gate_up, UnitParameters("GELU")))

    known = [0, 0.841191990607477, -0.158808009392523, 2.996362607364281, -0.003637392635719]
    np.testing.assert_allclose(y[0, :5], known, rtol=1e-6)
    same(y[0, 5:], np.array([1e13, -0.0], np.float32))


@given(m=st.integers(1, 3), k=st.sampled_from([1, 16, 17, 96, 1056]), seed=seeds)
def test_gelu_by_erf_lies_within_its_rounding(run, m, k, seed):
    rng = cases.rng_of(seed)
    gate = (10.0 ** rng.uniform(-3, 1.2) * rng.standard_normal((m, k))).astype(np.float32)

    y, *quantised = run(lambda program: cases.unit(program, gate, UnitParameters("GELU_ERF")))

    oracle.assert_within(y, *oracle.gelu_erf(gate))
    if quantised:
        assert_quantised(y, *quantised)


def test_gelu_by_erf_of_known_values(run):
    """The expected values are those of the erf form, computed with 50 digits."""
    gate = np.array([[0, 1, -1, 3, -3, 1e13, -1e13]], np.float32)

    (y,) = run(lambda program: cases.unit(program, gate, UnitParameters("GELU_ERF")))

    known = [0, 0.8413447460685429, -0.15865525393145707, 2.995950305904718, -0.0040496940952823]
    np.testing.assert_allclose(y[0, :5], known, rtol=0, atol=3 * 4e-7)
    same(y[0, 5:], np.array([1e13, -0.0], np.float32))


# --- Attention of encoders ----------------------------------------------------------------------

ENCODERS = [
    {"n_heads": 3, "kv_heads": 3, "width": 32, "rotated": 0, "halves": False},
    {"n_heads": 6, "kv_heads": 2, "width": 48, "rotated": 48, "halves": True},
    {"n_heads": 40, "kv_heads": 1, "width": 16, "rotated": 8, "halves": False},
]


@pytest.mark.parametrize("rows", [1, 2, 33, 64, 65, 130])
@pytest.mark.parametrize("shape", ENCODERS, ids=lambda shape: f"{shape['n_heads']} heads")
def test_a_row_of_an_encoder_is_one_that_comes_after_all_others(run, shape, rows):
    """The bits are equal: in a decoder's attention, too, the last row attends to every row."""
    layer = cases.heads(cases.rng_of(rows), rows, 0, **shape, dtype=np.float32)
    (out,) = run(lambda program: cases.encode(program, layer))
    rotated, *_ = run(lambda program: cases.rope(program, layer, 0))

    for row in {0, 1, rows // 2, rows - 1} & set(range(rows)):
        last = cases.Heads(**{**fields(layer), "qkv": rotated[row : row + 1].copy()})
        (wanted,) = run(lambda program, last=last: cases.attend(program, last, rows - 1))
        same(out[row], wanted[0])


# --- LayerNorm ----------------------------------------------------------------------------------


@given(m=st.integers(1, 4), k=widths, shift=st.sampled_from([0, 1, 30]), seed=seeds)
def test_layer_norm_lies_within_its_rounding(run, m, k, shift, seed):
    rng = cases.rng_of(seed)
    x = (rng.standard_normal((m, k)) + shift).astype(np.float32)
    gain, bias = rng.standard_normal((2, k), dtype=np.float32)

    residual, y, *quantised = run(lambda program: cases.layer_norm(program, x, gain, bias, 1e-5))

    oracle.assert_within(y, *oracle.layer_norm(x, gain, bias, np.float32(1e-5)))
    np.testing.assert_array_equal(residual, x)
    if quantised:
        assert_quantised(y, *quantised)


def test_layer_norm_adds_first_and_may_have_no_bias(run):
    x, more = cases.rng_of("add").standard_normal((2, 3, 96), dtype=np.float32)
    gain = np.ones(96, np.float32)

    residual, y, *_ = run(lambda program: cases.layer_norm(program, x, gain, None, 1e-6, more))

    same(residual, x + more)
    oracle.assert_within(y, *oracle.layer_norm(x + more, gain, 0.0, np.float32(1e-6)))


limits = st.sampled_from([7.0, 0.5, 1e3])


@given(m=st.integers(1, 3), k=st.sampled_from([1, 16, 17, 96]), limit=limits, seed=seeds)
def test_a_clamped_unit_lies_within_its_rounding(run, m, k, limit, seed):
    rng = cases.rng_of(seed)
    gate_up = (10.0 ** rng.uniform(-3, 2.2) * rng.standard_normal((m, 2 * k))).astype(np.float32)
    conventions = limit, 1.702, 1.0

    y, *_ = run(
        lambda program: cases.unit(program, gate_up, UnitParameters("CLAMPED", *conventions))
    )

    oracle.assert_within(y, *oracle.clamped(gate_up[:, :k], gate_up[:, k:], *conventions))


def test_clamping_does_not_hide_what_is_no_number(run):
    gate_up = np.array([[np.nan, 1, 1, np.nan]], np.float32)

    (y,) = run(
        lambda program: cases.unit(program, gate_up, UnitParameters("CLAMPED", 7.0, 1.702, 1.0))
    )

    assert np.isnan(y).all()


# --- Sums, scales and caps ----------------------------------------------------------------------


@given(k=widths, scale=st.sampled_from([1.0, 0.22, -3.0]), seed=seeds)
def test_a_scaled_sum_is_rounded_once(run, k, scale, seed):
    x, add = cases.rng_of(seed).standard_normal((2, 3, k), dtype=np.float32)
    exact = x.astype(np.float64) + float(np.float32(scale)) * add.astype(np.float64)

    y, *quantised = run(lambda program: cases.plain_sum(program, x, add, scale))

    oracle.assert_within(y, exact, oracle.U * abs(exact) + oracle.TINY)
    if scale == 1:
        same(y, x + add)
    if quantised:
        assert_quantised(y, *quantised)
    residual, *_ = run(lambda p: cases.norm(p, x, x[0], 1e-6, add, scale=scale))
    same(residual, y)


@given(k=widths, before=st.integers(0, 20), after=st.integers(0, 20), seed=seeds,
       scale=st.sampled_from([1.0, 0.22, -3.0]))  # fmt: skip
def test_a_sum_of_columns_is_the_sum_and_leaves_the_others(run, k, before, after, scale, seed):
    rng = cases.rng_of(seed)
    x = rng.standard_normal((3, before + k + after), dtype=np.float32)
    add = rng.standard_normal((3, k), dtype=np.float32)
    own = slice(before, before + k)
    expected = x.copy()
    expected[:, own], *_ = run(lambda program: cases.plain_sum(program, x[:, own], add, scale))

    (y,) = run(lambda program: cases.sum_of_columns(program, x, add, scale, before))

    same(y, expected)


@given(k=st.sampled_from([1, 17, 96, 5000]), factor=st.sampled_from([1.0, 0.125]), seed=seeds)
def test_capped_values_lie_within_their_rounding(run, k, factor, seed):
    rng = cases.rng_of(seed)
    x = (10.0 ** rng.uniform(-6, 3, (3, k)) * rng.choice([-1, 1], (3, k))).astype(np.float32)

    (y,) = run(lambda program: cases.cap(program, x, factor, 30.0))

    oracle.assert_within(y, *oracle.capped(factor * x.astype(np.float64), 30.0))
    same(run(lambda program: cases.cap(program, x, factor, 0.0))[0], np.float32(factor) * x)


def test_values_are_capped_where_a_run_has_logits(run):
    x = np.ones((5, 40), np.float32)

    (y,) = run(lambda program: cases.cap(program, x, 3.0, 0.0, head=3))

    same(y, np.array([[3], [3], [1], [1], [1]], np.float32).repeat(40, axis=1))


# --- Short convolution between gates ------------------------------------------------------------


@given(
    rows=st.integers(1, 12),
    k=st.sampled_from([16, 48, 96, 272, 544]),
    kernel_size=st.integers(1, 8),
    position=st.sampled_from([0, 1, 3, 8, 9, 40]),
    seed=seeds,
)
def test_a_short_convolution_sees_the_tokens_before(run, rows, k, kernel_size, position, seed):
    """The bound covers the rounding of gate times value, of the sum, and of the last product."""
    rng = cases.rng_of(seed)
    x, weight = (
        rng.standard_normal(s, dtype=np.float32) for s in ((rows, 3 * k), (kernel_size, k))
    )
    kept = rng.standard_normal((max(kernel_size, 9), k), dtype=np.float32)
    before, after, value = np.split(x, 3, axis=1)
    gone = [kept[at % len(kept)] if at >= 0 else 0 * kept[0]
            for at in range(position - kernel_size + 1, position)]  # fmt: skip
    seen = np.concatenate([np.reshape(gone, (-1, k)), before * value]).astype(np.float64)
    terms = [seen[j : j + rows] * weight[j] * after for j in range(kernel_size)]
    bound = (
        oracle.gamma(kernel_size + 2) * abs(np.array(terms)).sum(axis=0)
        + (kernel_size + 2) * oracle.TINY
    )

    y, *quantised, left = run(lambda p: cases.shortconv(p, x, weight, kept, position))

    oracle.assert_within(y, sum(terms), bound)
    for t in range(max(0, rows - len(kept)), rows):
        same(left[(position + t) % len(kept)], before[t] * value[t])
    if quantised:
        assert_quantised(y, *quantised)
    cut = rows // 2
    if cut:
        first, *_, middle = run(lambda p: cases.shortconv(p, x[:cut], weight, kept, position))
        later = x[cut:].copy(), weight, middle, position + cut
        second, *_, end = run(lambda p: cases.shortconv(p, *later))
        same(np.concatenate([first, second]), y)
        same(end, left)


# --- Attention ----------------------------------------------------------------------------------

optional = st.fixed_dictionaries(
    {
        "window": st.sampled_from([0, 1, 5, 64, 70, 200]),
        "softcap": st.sampled_from([0.0, 0.5, 30.0]),
        "sinks": st.booleans(),
        "temperature": st.booleans(),
    }
)


@given(optional, positions, batches, st.sampled_from([16, 64]), seeds)
def test_attention_with_options_lies_within_its_rounding(run, options, position, rows, width, seed):
    shape = {"n_heads": 4, "kv_heads": 2, "width": width, "rotated": 0, "halves": True}
    layer = cases.heads(cases.rng_of(seed), rows, position, **shape, dtype=np.float32, **options)

    (out,) = run(lambda program: cases.attend(program, layer, position))

    oracle.assert_within(out, *reference(layer, position))


def test_a_window_hides_what_came_before(run):
    """Keys and values before the window do not change the result."""
    shape = {"n_heads": 2, "kv_heads": 1, "width": 32, "rotated": 32, "halves": True, "window": 70}
    layer = cases.heads(cases.rng_of("past"), 1, 200, **shape, dtype=np.float32)
    (before,) = run(lambda program: cases.attend(program, layer, 200))
    before = before.copy()
    keys, values = cases.lines(layer.k_cache), cases.unpaged(layer.v_cache)
    keys[:, :131] += 1
    values[:, :131] += 1
    layer.k_cache[:], layer.v_cache[:] = cases.panels(keys), cases.paged(values)

    (after,) = run(lambda program: cases.attend(program, layer, 200))

    same(after, before)


def test_a_large_sink_takes_all(run):
    shape = {"n_heads": 2, "kv_heads": 1, "width": 16, "rotated": 16, "halves": True}
    layer = cases.heads(cases.rng_of("sink"), 1, 9, **shape, dtype=np.float32, sinks=True)
    layer.sinks[:] = 500, -500

    (out,) = run(lambda program: cases.attend(program, layer, 9))

    assert not out[0, :16].any()
    plain = cases.Heads(**fields(layer) | {"sinks": None})
    (without,) = run(lambda program: cases.attend(program, plain, 9))
    np.testing.assert_allclose(out[0, 16:], without[0, 16:], rtol=1e-6)


@given(positions, batches, st.sampled_from([16, 48, 128]), seeds)
def test_q_and_k_may_be_normed_over_all_heads(run, position, rows, width, seed):
    """No element is rotated here, so that only the norm changes q and k."""
    shape = {"n_heads": 4, "kv_heads": 2, "width": width, "rotated": 0, "halves": False}
    layer = cases.heads(cases.rng_of(seed), rows, position, **shape, dtype=np.float32, whole=True)
    q, k = np.s_[:, : 4 * width], np.s_[:, 4 * width : 6 * width]
    before = layer.qkv.copy()

    qkv, *_ = run(lambda program: cases.rope(program, layer, position))

    oracle.assert_within(qkv[q], *oracle.norm(before[q], layer.q_norm, 1e-6))
    oracle.assert_within(qkv[k], *oracle.norm(before[k], layer.k_norm, 1e-6))
    same(qkv[:, 6 * width :], before[:, 6 * width :])
