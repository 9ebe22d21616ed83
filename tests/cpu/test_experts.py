"""Tests of experts: the choice of the likeliest, the order of rows, and which weights are read."""

import ctypes
import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cpu.pool.engine import Input, empty
from npurt.cpu.pool.operands import Image
from npurt.cpu.pool.program import Program
from npurt.errors import LayoutError
from npurt.quant.types import find
from tests import oracle
from tests.cpu import cases, delta_cases, delta_oracle
from tests.cpu.foreign import same

seeds = st.integers(0, 2**32)
sizes = st.tuples(st.integers(1, 40), st.integers(1, 70)).flatmap(
    lambda size: st.tuples(st.just(size[0]), st.just(size[1]), st.integers(1, min(size[1], 12)))
)


def routed(run, scores, experts, top_k, **options):
    """Return expert_weights, scatter, gather and groups ``(matrix, rows, first)``."""
    expert_weights, scatter, gather, groups = run(
        lambda program: delta_cases.route(program, scores, experts, top_k, **options)
    )
    return expert_weights, scatter, gather, groups.view(delta_cases.GROUP).tolist()


@given(sizes, st.booleans(), st.sampled_from([1.0, 2.5]), seeds)
def test_the_likeliest_experts_are_chosen_with_their_shares(run, size, normed, scale, seed):
    """An exponential's error is EXP plus its argument's rounding; a sum of E terms adds more."""
    rows, experts, top_k = size
    scores = 4 * delta_cases.floats(cases.rng_of(seed), rows, experts + 2)
    wide = scores[:, :experts].astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    likely = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
    order = np.argsort(-wide, axis=1, kind="stable")[:, :top_k]
    wanted = np.take_along_axis(likely, order, axis=1)
    wanted = wanted / wanted.sum(axis=1, keepdims=True) if normed else wanted
    off = 2 * (oracle.EXP + oracle.U * (4 - wide.min()) + oracle.gamma(experts // 16 + top_k + 9))

    expert_weights, scatter, gather, groups = routed(
        run, scores, experts, top_k, normed=normed, scale=scale
    )

    oracle.assert_within(expert_weights, scale * wanted, off * scale * wanted + oracle.EXP_FLUSHED)
    matrix_of = {}
    for matrix, count, first in groups:
        matrix_of |= dict.fromkeys(range(first, first + count), matrix)
    chosen = np.vectorize(matrix_of.get)(scatter)
    np.testing.assert_array_equal(chosen, order)
    np.testing.assert_array_equal(gather[scatter], np.arange(rows)[:, None].repeat(top_k, axis=1))


@given(sizes, seeds)
def test_shares_may_be_a_softmax_of_the_chosen_alone(run, size, seed):
    rows, experts, top_k = size
    scores = 4 * delta_cases.floats(cases.rng_of(seed), rows, experts)
    wide = -np.sort(-scores.astype(np.float64), axis=1)[:, :top_k]
    wide -= wide[:, :1]
    wanted = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
    off = 2 * (oracle.EXP + oracle.U * (4 - wide.min()) + oracle.gamma(top_k + 9))

    expert_weights, *_ = routed(run, scores, experts, top_k, normed=False, over_chosen=True)

    oracle.assert_within(expert_weights, wanted, off * wanted + oracle.EXP_FLUSHED)


@given(sizes.filter(lambda size: size[1] <= 20), st.sampled_from(["mxfp4", "f16"]), seeds)
def test_each_expert_adds_its_own_bias(run, size, fmt, seed):
    """The result is the result without biases plus the bias, rounded once."""
    rows, experts, top_k = size
    rng = cases.rng_of(fmt, seed)
    weights = [cases.stack(rng, fmt, experts, n, 64) for n in (16, 32)]
    biases = [delta_cases.floats(rng, experts, n) for n in (16, 32)]
    x, scores = delta_cases.floats(rng, rows, 64), delta_cases.floats(rng, rows, experts)
    *_, plain, _ = run(lambda p: delta_cases.mixture(p, weights, x, scores, top_k))

    *_, y, _ = run(lambda p: delta_cases.mixture(p, weights, x, scores, top_k, biases=biases))

    *_, groups = routed(run, scores, experts, top_k)
    with np.errstate(all="ignore"):
        for matrix, count, first in groups:
            if count:
                here, added = np.s_[first : first + count], [b[matrix] for b in biases]
                same(y[here], plain[here] + np.concatenate(added))


@given(sizes, seeds)
def test_groups_follow_each_other_in_the_order_of_experts(run, size, seed):
    rows, experts, top_k = size
    scores = delta_cases.floats(cases.rng_of(seed), rows, experts)

    _, scatter, _, groups = routed(run, scores, experts, top_k)

    full = [group for group in groups if group[1]]
    assert groups[: len(full)] == full, "a group without rows ends the list"
    assert [matrix for matrix, _, _ in full] == sorted({matrix for matrix, _, _ in full})
    assert [first for _, _, first in full] == np.cumsum([0, *[n for _, n, _ in full]])[:-1].tolist()
    assert sorted(scatter.reshape(-1).tolist()) == list(range(rows * top_k))


def test_of_equal_scores_the_first_are_chosen(run):
    expert_weights, scatter, _, groups = routed(run, np.zeros((1, 9), np.float32), 9, 3)

    assert [matrix for matrix, _, _ in groups] == [0, 1, 2]
    assert scatter.tolist() == [[0, 1, 2]]
    np.testing.assert_allclose(expert_weights, 1 / 3, rtol=1e-6)


def test_a_score_that_is_no_number_shows(run):
    scores = np.zeros((2, 8), np.float32)
    scores[1, 5] = np.nan

    expert_weights, _, _, groups = routed(run, scores, 8, 2)

    assert np.isfinite(expert_weights[0]).all()
    assert np.isnan(expert_weights[1]).all()
    assert all(0 <= matrix < 8 for matrix, _, _ in groups)


formats = st.sampled_from(["q8_0", "q4_0", "q4_1", "mxfp4", "iq4_nl", "f32", "f16"])


@given(sizes.filter(lambda size: size[1] <= 20), formats, st.booleans(), seeds)
def test_a_row_gets_what_its_experts_alone_would_give_it(run, size, fmt, int16, seed):
    rows, experts, top_k = size
    rng = cases.rng_of(fmt, seed)
    weights = [cases.stack(rng, fmt, experts, n, 64) for n in (16, 32)]
    x, scores = cases.activations(rng, rows, 64), delta_cases.floats(rng, rows, experts)

    *copied, y, out = run(lambda p: delta_cases.mixture(p, weights, x, scores, top_k, int16=int16))

    expert_weights, scatter, gather, groups = routed(run, scores, experts, top_k)
    np.testing.assert_array_equal(copied[0], x[gather])
    for matrix, count, first in groups:
        here, column = np.s_[first : first + count], 0
        for w in weights if count else ():
            chosen = w[matrix], x[gather[here]]
            alone = run(lambda p, c=chosen: cases.matmul(p, *c, int16=int16))[-1]
            same(y[here, column : column + w.shape[1]], alone)
            column += w.shape[1]
    with np.errstate(all="ignore"):
        terms = y.astype(np.float64)[scatter] * expert_weights.astype(np.float64)[..., None]
        bound = oracle.gamma(top_k) * abs(terms).sum(axis=1) + top_k * oracle.TINY
        sound = np.isfinite(terms).all(axis=1) & (abs(terms).sum(axis=1) < 1e38)
    oracle.assert_within(np.where(sound, out, 0), np.where(sound, terms.sum(axis=1), 0),
                         np.where(sound, bound, 0))  # fmt: skip


PLAIN, INT16 = {"quantised": True}, {"quantised": True, "int16": True}


@pytest.mark.parametrize(
    ("source", "out"),
    [
        (PLAIN, INT16),
        (INT16, PLAIN),  # the block fields of an int16 input include the remainders
        ({"quantised": False}, PLAIN),
        (PLAIN | {"k": 64}, PLAIN),
    ],
)
def test_copies_that_their_rows_have_no_codes_for_are_refused(run, source, out):
    source, out = (Input(**({"rows": 2, "k": 32} | each)) for each in (source, out))
    program = Program(run.engine)

    with pytest.raises(LayoutError, match="gathered"):
        program.gather(source, delta_cases.routing(1, 2, 2), out)
    assert not len(program)


@given(st.integers(1, 9), st.integers(1, 40), seeds)
def test_the_shared_expert_is_added_by_its_gate(run, rows, k, seed):
    rng = cases.rng_of(seed)
    to = delta_cases.routing(rows, 3, 2)
    to.expert_weights[:] = rng.random((rows, 2))
    to.scatter_indices[:] = rng.permutation(2 * rows).reshape(rows, 2)
    y, shared = delta_cases.floats(rng, 2 * rows, k), delta_cases.floats(rng, rows, k)
    scores = 6 * delta_cases.floats(rng, rows, 5)

    def case(program):
        program.rows = rows
        out = empty(rows, k)
        program.weighted_sum(y, to, out, shared=shared, gate=scores[:, 4:])
        return [out]

    (out,) = run(case)

    wide = [
        v.astype(np.float64) for v in (y[to.scatter_indices], to.expert_weights[..., None], shared)
    ]
    opened, off = delta_oracle.sigmoid(scores[:, 4:].astype(np.float64))
    wanted = (wide[0] * wide[1]).sum(axis=1) + opened * wide[2]
    size = abs(wide[0] * wide[1]).sum(axis=1) + opened * abs(wide[2])
    oracle.assert_within(out, wanted, oracle.gamma(4) * size + 1.01 * off * abs(wide[2]))


def test_experts_that_nobody_chose_are_not_read(run):
    """The pages of experts without rows are inaccessible: a read of one ends the process."""
    n, k, experts = 16, 1024, 6
    rng = cases.rng_of("pages")
    memory = mmap.mmap(-1, experts * n * k * 4)  # 16 pages a matrix
    data = np.frombuffer(memory, np.uint8)
    image = Image(data, n, k, find("f32"))
    data.view(np.float32)[:] = delta_cases.floats(rng, experts * n * k)
    x, scores = delta_cases.floats(rng, 3, k), np.zeros((3, experts), np.float32)
    scores[:, [1, 4]] = 9
    libc, address = ctypes.CDLL(None, use_errno=True), data.ctypes.data

    def protect(matrix, how):
        at = ctypes.c_void_p(address + matrix * n * k * 4)
        assert libc.mprotect(at, ctypes.c_size_t(n * k * 4), how) == 0

    def case(program):
        to = delta_cases.routing(3, experts, 2)
        program.rows = 3
        source, copies = (Input(rows, k, quantised=False) for rows in (3, 6))
        source.values[:] = x
        program.route(scores, to, normed=True)
        program.gather(source, to, copies)
        y = empty(6, n)
        program.matmul(copies, [image], y, routing=to)
        return [y]

    unread = (0, 2, 3, 5)
    for matrix in unread:
        protect(matrix, mmap.PROT_NONE if hasattr(mmap, "PROT_NONE") else 0)
    (y,) = run(case)
    for matrix in unread:
        protect(matrix, mmap.PROT_READ | mmap.PROT_WRITE)

    assert np.isfinite(y).all()
    assert abs(y).max() > 0


@pytest.mark.parametrize("rows", [1, 40])
def test_a_stack_may_have_more_experts_than_there_are_chunks(run, rows):
    """With 300 experts of three panels, a chunk spans two experts."""
    rng = cases.rng_of(rows)
    weights = [cases.stack(rng, "q8_0", 300, 48, 32)]
    x, scores = cases.activations(rng, rows, 32), delta_cases.floats(rng, rows, 300)

    *_, y, _ = run(lambda p: delta_cases.mixture(p, weights, x, scores, 10))

    _, _, gather, groups = routed(run, scores, 300, 10)
    for matrix, count, first in groups[:: max(1, len(groups) // 20)]:
        here = np.s_[first : first + count]
        if count:
            alone = run(lambda p, m=matrix, h=here: cases.matmul(p, weights[0][m], x[gather[h]]))
            same(y[here], alone[-1])
