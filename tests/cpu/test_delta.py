"""Tests of the gated delta net and the ops around it, against float64 and ggml's results."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cpu.device import CpuDevice
from npurt.errors import UnsupportedOp
from tests import oracle
from tests.cpu import cases, delta_cases, delta_oracle
from tests.cpu.delta_nets import (
    CONFIGURATIONS,
    RECORDED,
    UPSTREAM,
    configured,
    net_of,
    recorded,
    shapes,
)
from tests.cpu.foreign import same
from tests.llm.reference import nmse

nets = shapes(tokens=[1, 2, 15, 16, 17, 40])
seeds = st.integers(0, 2**32)


# --- Accuracy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", CONFIGURATIONS, ids=str)
def test_upstreams_configurations_are_within_its_threshold(run, values):
    net = configured(values)
    reference, last, *_ = delta_oracle.delta(net)

    out, state = run(lambda program: delta_cases.run_delta(program, net))

    assert nmse(out, reference) <= UPSTREAM
    assert nmse(state, last) <= UPSTREAM


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_ggmls_and_the_exact_numbers_come_out(run, path):
    """Results agree with recorded ggml and exact results, and the oracle with the exact ones."""
    given_ = np.load(path)
    net = recorded(given_)
    reference, last, *_ = delta_oracle.delta(net)

    out, state = run(lambda program: delta_cases.run_delta(program, net))

    np.testing.assert_allclose(reference, given_["out_f64"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(last, given_["state_f64"][0], rtol=1e-10, atol=1e-12)
    for have, exact, ggml in (
        (out, given_["out_f64"], given_["out_ggml"]),
        (state, given_["state_f64"][0], given_["state_ggml"][0]),
    ):
        assert nmse(have, exact) < 4 * nmse(ggml, exact)  # another order of the same sums
        assert nmse(have, ggml) <= UPSTREAM


@given(nets, seeds)
def test_results_lie_within_their_rounding(run, shape, seed):
    net = net_of(shape, seed)
    reference, last, bound, state_bound = delta_oracle.delta(net)

    out, state = run(lambda program: delta_cases.run_delta(program, net))

    oracle.assert_within(out, reference, bound)
    oracle.assert_within(state, last, state_bound)


def test_a_decay_of_everything_leaves_the_token_alone(run):
    """A decay of e^-1000 is 0: the state is beta v k^T, and the result has no NaN."""
    net = net_of({"heads": 2, "width": 32, "tokens": 1})
    net.decay[:] = -1000

    out, state = run(lambda program: delta_cases.run_delta(program, net))

    wanted = (net.beta[..., None] * net.v)[0, 0, :, :, None] * net.k[0, 0, :, None, :]
    np.testing.assert_allclose(state[0], wanted, rtol=4 * oracle.U, atol=0)
    assert np.isfinite(out).all()


# --- The same bits for every split ----------------------------------------------------------------


@given(nets, seeds, st.lists(st.integers(1, 20), max_size=6))
def test_any_split_of_the_tokens_gives_the_same_bits(run, shape, seed, sizes):
    net = net_of(shape, seed)
    out, state = run(lambda program: delta_cases.run_delta(program, net))
    at, parts, now = 0, [], net.state

    for size in [*sizes, shape["tokens"]]:
        part = replace(net.after(at).first(size), state=now)
        if part.v.shape[1]:
            piece, now = run(lambda program, part=part: delta_cases.run_delta(program, part))
            parts.append(piece)
        at += size

    same(np.concatenate(parts, axis=1), out)
    same(now, state)


@given(nets, seeds)
def test_sequences_and_heads_do_not_mix(run, shape, seed):
    net = net_of(shape, seed)
    out, state = run(lambda program: delta_cases.run_delta(program, net))
    sequence, head = shape["sequences"] - 1, net.v.shape[2] - 1
    k_head = head // shape["repeat"] if shape["grouped"] else head % shape["heads"]
    one, here, there = np.s_[sequence:, :], np.s_[head : head + 1], np.s_[k_head : k_head + 1]

    alone = replace(
        net,
        **{name: getattr(net, name)[one][:, :, there] for name in "qk"},
        **{name: getattr(net, name)[one][:, :, here] for name in ("v", "decay", "beta", "out")},
        state=net.state[sequence:, here].copy(),
    )
    result, last = run(lambda program: delta_cases.run_delta(program, alone))

    same(result, out[one][:, :, here])
    same(last, state[sequence:, here])


@given(
    tokens=st.integers(1, 40),
    start=st.integers(0, 2),
    saved=st.sampled_from([-1, 1, 2]),
    before=st.integers(0, 39),
)
def test_slots_hold_the_state_from_and_at_the_tokens_asked_for(run, tokens, start, saved, before):
    before = min(before, tokens - 1)
    net = net_of({"heads": 2, "width": 32, "tokens": tokens})
    if saved == start:
        saved = -1

    def case(program):
        return delta_cases.run_delta(program, net, 3, (start, saved, before))

    out, slots = run(case)

    begun = replace(net, state=net.state * max(start, 1))
    plain, last = run(lambda program: delta_cases.run_delta(program, begun))
    _, middle = run(lambda program: delta_cases.run_delta(program, begun.first(before)))
    same(out, plain)
    same(slots[0], last)
    for slot in (1, 2):
        same(slots[slot], middle if slot == saved and before else
             begun.state if slot == saved else net.state * slot)  # fmt: skip


def test_a_device_runs_more_tokens_than_fit_a_run():
    net = net_of({"heads": 2, "width": 16, "tokens": 1100})
    reference, last, *_ = delta_oracle.delta(net)

    with CpuDevice(threads=2) as device:
        device.delta_net(net)

    assert nmse(net.out, reference) <= UPSTREAM
    assert nmse(net.state, last) <= UPSTREAM


@pytest.mark.parametrize(
    ("match", "shape", "change"),
    [
        ("144 wide", {"width": 144}, {}),
        ("24 wide", {"width": 24}, {}),
        ("3 heads do not share 2", {"width": 16, "heads": 2}, {"v": np.zeros((1, 1, 3, 16), "f4")}),
        ("2 decays", {"width": 16}, {"decay": np.zeros((1, 1, 1, 2), np.float32)}),
    ],
)
def test_a_net_that_the_kernels_cannot_run_is_refused(match, shape, change):
    net = replace(net_of({"heads": 1, "tokens": 1} | shape), **change)

    with CpuDevice(threads=1) as device, pytest.raises(UnsupportedOp, match=match) as caught:
        device.delta_net(net)
    assert caught.value.remedy


# --- The convolution ------------------------------------------------------------------------------

convolutions = st.fixed_dictionaries(
    {
        "rows": st.sampled_from([1, 2, 8, 9, 10, 30]),
        "heads": st.integers(1, 3),
        "k_heads": st.integers(1, 2),
        "width": st.sampled_from([16, 48, 128]),
        "kernel_size": st.sampled_from([1, 2, 4, 8]),
    }
)
places = st.sampled_from([0, 1, 3, 8, 9, 40])


def seen_by(c, position):
    """Return the input of the convolution ``[kernel_size - 1 + rows, channels]``.

    Rows before position 0 are zeros.  The next rows are those of `c.kept`, and the last those of
    `c.x`.
    """
    channels, context = c.weight.shape[1], len(c.weight) - 1
    at = np.arange(position - context, position)
    before = np.where(at[:, None] < 0, 0, c.stored_inputs[at % len(c.stored_inputs), :channels])
    return np.concatenate([before, c.x[:, :channels]])


@given(convolutions, places, seeds)
def test_the_convolution_lies_within_its_rounding(run, shape, position, seed):
    c = delta_cases.convolution(cases.rng_of(seed), position=position, **shape)
    keys = 2 * c.k_heads
    reference, bound = delta_oracle.convolution(seen_by(c, position), c.weight)
    reference, bound = (v.reshape(len(c.x), -1, c.width) for v in (reference, bound))
    unit, unit_bound = delta_oracle.unit(reference[:, :keys], bound[:, :keys], np.float32(c.eps))

    out, gates, _ = run(lambda program: delta_cases.convolve(program, c, position))

    out = out.reshape(reference.shape)
    oracle.assert_within(out[:, :keys], unit, unit_bound)
    oracle.assert_within(out[:, keys:], reference[:, keys:], bound[:, keys:])
    beta, alpha = np.split(c.gates.astype(np.float64), 2, axis=1)
    oracle.assert_within(gates[:, : c.heads], *delta_oracle.sigmoid(beta))
    soft, soft_bound = delta_oracle.softplus(alpha + c.bias)
    soft_bound += oracle.U * abs(alpha + c.bias)  # of the sum; the slope is at most 1
    wanted = c.rate * soft
    oracle.assert_within(
        gates[:, c.heads :], wanted, 1.01 * abs(c.rate) * soft_bound + oracle.U * abs(wanted)
    )


@given(convolutions, places, seeds)
def test_it_keeps_what_it_read_and_a_replay_of_that_gives_the_same(run, shape, position, seed):
    c = delta_cases.convolution(cases.rng_of(seed), position=position, capacity=40, **shape)
    rows, channels = len(c.x), c.weight.shape[1]

    out, gates, kept = run(lambda program: delta_cases.convolve(program, c, position))

    at = np.arange(position, position + rows) % len(kept)
    same(kept[at, :channels], c.x[:, :channels])
    same(kept[at, channels:], c.gates)
    other = np.setdiff1d(np.arange(len(kept)), at)
    same(kept[other], c.stored_inputs[other])
    nothing = replace(
        c, x=np.full_like(c.x, np.nan), gates=np.full_like(c.gates, np.nan), stored_inputs=kept
    )
    if position + rows <= len(kept):
        again = run(lambda p: delta_cases.convolve(p, nothing, position, replay=True))
        for have, want in zip(again, (out, gates, kept), strict=True):
            same(have, want)


@given(convolutions, places, seeds, st.integers(1, 29))
def test_rows_of_two_runs_are_those_of_one(run, shape, position, seed, first):
    c = delta_cases.convolution(cases.rng_of(seed), position=position, **shape)
    first = min(first, len(c.x))
    out, gates, kept = run(lambda program: delta_cases.convolve(program, c, position))

    def part(rows, ring):
        return replace(c, x=c.x[rows], gates=c.gates[rows], out=c.out[rows],
                       out_gates=c.out_gates[rows], stored_inputs=ring)  # fmt: skip

    one = run(lambda p: delta_cases.convolve(p, part(np.s_[:first], c.stored_inputs), position))
    results = [one]
    if first < len(c.x):
        rest = part(np.s_[first:], one[2])
        results.append(run(lambda p: delta_cases.convolve(p, rest, position + first)))

    same(np.concatenate([r[0] for r in results]), out)
    same(np.concatenate([r[1] for r in results]), gates)
    same(results[-1][2], kept)


def test_decay_far_out_is_what_softplus_is(run):
    c = delta_cases.convolution(cases.rng_of("far"), rows=1, heads=6)
    c.gates[0, 6:] = [100, 1e30, -100, -1e30, 20, -20]
    c.bias[:], c.rate[:] = 0, -1

    _, gates, _ = run(lambda program: delta_cases.convolve(program, c))

    wanted = -np.logaddexp(0, c.gates[0, 6:].astype(np.float64))
    np.testing.assert_allclose(gates[0, 6:], wanted, rtol=1e-6, atol=1e-35)


# --- The gated norm -------------------------------------------------------------------------------


@given(
    rows=st.integers(1, 4),
    heads=st.integers(1, 4),
    width=st.sampled_from([16, 32, 48, 128]),
    exponent=st.integers(-6, 6),
    seed=seeds,
)
def test_the_gated_norm_lies_within_its_rounding(run, rows, heads, width, exponent, seed):
    rng = cases.rng_of(seed)
    x = (10.0**exponent * rng.standard_normal((rows, heads * width))).astype(np.float32)
    z = (10.0 ** rng.uniform(-2, 2) * rng.standard_normal((rows, heads * width + 5))).astype("f4")
    weight = delta_cases.floats(rng, width)

    y, *quantised = run(lambda program: delta_cases.gate(program, x, z[:, 5:], weight))

    parts = (v.reshape(rows, heads, width) for v in (x, z[:, 5:]))
    reference, bound = delta_oracle.gate(*parts, weight, np.float32(1e-6))
    oracle.assert_within(y.reshape(reference.shape), reference, bound)
    assert bool(quantised) == (heads * width % 32 == 0)
