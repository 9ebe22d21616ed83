"""Test states of delta nets that remain on the DSP: reads, writes, rollbacks, copies."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.device.delta import state_values
from npurt.errors import DeviceLost
from npurt.hexagon.layout import delta
from tests.cpu import delta_oracle
from tests.cpu.delta_nets import net_of
from tests.hexagon.delta_nets import (
    MAX_REPLAYED,
    SHAPES,
    after,
    kill_dsp_of,
    modelled,
    one_by_one,
    own,
    run,
)
from tests.hexagon.simulator import tell


def test_a_state_stays_there_until_somebody_asks(shared, monkeypatch):
    """The state is not converted to float32, and its initial values are not read again."""
    net = own(net_of({"heads": 2, "width": 32, "tokens": 9}))
    wanted = run(shared, net)
    connections = []
    for name in ("pack_state", "unpack_state"):
        plain = getattr(delta, name)
        monkeypatch.setattr(
            delta, name, lambda *a, name=name, plain=plain: (connections.append(name), plain(*a))
        )

    state = shared.delta_state(net)
    net.state[...] = np.nan
    one_by_one(state, net)

    np.testing.assert_array_equal(net.out, wanted.out)
    assert connections == ["pack_state"]
    np.testing.assert_array_equal(state.read(), wanted.state)
    assert connections == ["pack_state", "unpack_state"]


@given(st.lists(st.sampled_from(["advance", "read", "keep", "resume"]), max_size=25))
def test_a_state_goes_on_as_if_nobody_had_looked_or_gone_back(shared, steps):
    """Reads, checkpoints and rollbacks in any order change no bit."""
    net, whole = shared_case(shared)
    state = shared.delta_state(net)
    token, kept = 0, (state.checkpoint(), 0)
    for step in steps:
        if step == "advance":
            state.advance(net.after(token).first(1))
            np.testing.assert_array_equal(net.out[:, token], whole.out[:, token])
            token += 1
        elif step == "read":
            state.read()
        elif step == "keep":
            kept = state.checkpoint(), token
        else:
            state.restore_checkpoint(kept[0])
            token = kept[1]
    state.advance(net.after(token))

    np.testing.assert_array_equal(net.out[:, token:], whole.out[:, token:])
    np.testing.assert_array_equal(state.read(), whole.state)


CASE = {}


def shared_case(device):
    if not CASE:
        CASE["net"] = own(net_of({"heads": 2, "width": 32, "tokens": 30}))
        CASE["whole"] = run(device, CASE["net"])
    return own(CASE["net"]), CASE["whole"]


def test_what_is_written_to_a_state_is_what_it_is(shared):
    """A read returns the written values, to the bit, until the state advances."""
    net = own(net_of({"heads": 2, "width": 32, "tokens": 2}))
    other = own(net_of({"heads": 2, "width": 32, "tokens": 1}, 5)).state
    state = shared.delta_state(net)
    state.advance(net.first(1))
    kept = state.checkpoint()

    state.write(other)
    written = other.copy()
    other[...] = np.nan
    np.testing.assert_array_equal(state.read(), written)
    state.advance(net.after(1))

    wanted, _ = modelled(replace(net, state=written).after(1))
    np.testing.assert_array_equal(net.out[:, 1:], wanted)
    np.testing.assert_array_equal(state.to_float32(kept), run(shared, net.first(1)).state)


def test_states_do_not_know_of_each_other(shared):
    """Two states on a device, also those made from the same array, are independent."""
    nets = [own(net_of({"heads": 1, "width": 16, "tokens": 5}, i)) for i in range(3)]
    wanted = [run(shared, net) for net in nets]
    states = [shared.delta_state(net) for net in nets]

    for token, (net, state) in itertools.product(range(5), zip(nets, states, strict=True)):
        net.state[...] = 0
        state.advance(net.after(token).first(1))

    for net, state, alone in zip(nets, states, wanted, strict=True):
        np.testing.assert_array_equal(net.out, alone.out)
        np.testing.assert_array_equal(state.read(), alone.state)


def test_what_a_state_is_made_again_from_does_not_grow(shared):
    net = own(net_of({"heads": 1, "width": 16, "tokens": 3 * MAX_REPLAYED}))
    state = shared.delta_state(net)
    for token in range(3 * MAX_REPLAYED):
        state.advance(net.after(token).first(1))
        assert len(state._version.rows) <= MAX_REPLAYED
    state.advance(net)
    assert not state._version.rows


def test_states_that_nobody_has_any_more_leave_their_memory(fresh):
    net = own(net_of({"heads": 8, "width": 128, "tokens": 1}))
    for _ in range(100):
        fresh.delta_state(net).advance(net)

    assert len(fresh._sessions.opened[0]._own) <= 2
    assert len(fresh._states) <= 1


@given(SHAPES, st.integers(0, 2**32))
def test_what_the_host_does_with_rows_is_a_delta_net(shape, seed):
    net = net_of(shape, seed)
    _, last, *_ = delta_oracle.delta(net)
    shape = delta.shape_of(net)
    rows = np.full((*net.v.shape[:2], shape.row_bytes[0] // 4), np.nan, np.float32)
    delta.DeltaRows.of(rows, shape).write(net)
    half = rows.shape[1] // 2

    done = delta.passed(net.state, (rows[:, :half], rows[:, half:]), shape)

    # roundings to float64 and to float32 of elements, which may be sums of larger numbers
    size = np.abs(last).max() + np.abs(net.state).max()
    np.testing.assert_allclose(done, last, rtol=2.0**-24, atol=2.0**-40 * size)


# --- snapshots and files --------------------------------------------------------------------------


def through_words(exact, net):
    """Return *exact* after a conversion to the DSP's form and back."""
    shape = delta.shape_of(net)
    return delta.exact_state(delta.words_of(exact, shape), shape)


@settings(max_examples=40)
@given(SHAPES, st.integers(0, 2**32), st.integers(0, 19))
def test_a_state_goes_on_from_a_snapshot_as_if_nothing_had_been(shared, shape, seed, token):
    """The results are equal to the bit, although the device had other states meanwhile."""
    net = own(net_of(shape, seed))
    token = min(token, net.v.shape[1] - 1)
    state = shared.delta_state(net)
    state.advance(net.first(token))
    exact = state.exact()
    state.advance(net.after(token))
    whole, last = net.out.copy(), state.exact()

    other = shared.delta_state(own(net_of(shape, seed + 1)))
    other.advance(own(net).first(1))
    other.restore(exact)
    np.testing.assert_array_equal(other.exact(), exact)
    net.out[:, token:] = np.nan
    other.advance(net.after(token))

    np.testing.assert_array_equal(net.out, whole)
    np.testing.assert_array_equal(other.exact(), last)
    np.testing.assert_array_equal(through_words(last, net), last)
    np.testing.assert_array_equal(state_values(last), state.read())


def test_known_integers_of_a_state(shared):
    """In a row of 1.5 and -0.75, the largest has 30 bits and determines the row's exponent."""
    net = own(net_of({"heads": 1, "width": 16, "tokens": 1}))
    net.state[...] = 0
    net.state[0, 0, 3, 5], net.state[0, 0, 3, 6] = 1.5, -0.75

    exact = shared.delta_state(net).exact()

    assert (exact.shape, exact.dtype) == ((1, 1, 16, 18), np.int32)
    integers, exponents, gains = exact[0, 0, :, :16], exact[0, 0, :, 16], exact[0, 0, :, 17]
    assert (gains == 1 << 30).all()
    assert integers[3, 5] == 3 << 28
    assert integers[3, 6] == -(3 << 27)
    assert np.count_nonzero(integers) == 2
    assert integers[3, 5] * 0.5 * 2.0 ** exponents[3] == 1.5


@pytest.mark.parametrize("tokens", [0, 3, MAX_REPLAYED + 2])
def test_a_snapshot_of_a_dsp_that_has_died_is_exact(tokens, fresh):
    """The tokens since the last copy are repeated."""
    net = own(net_of({"heads": 2, "width": 64, "tokens": tokens + 1}))
    whole = run(fresh, net)
    state = after(fresh, net, tokens)
    wanted = state.exact()
    state = after(fresh, net, tokens)
    state._in_memory = None  # as after an interrupted call
    kill_dsp_of(fresh)

    np.testing.assert_array_equal(state.exact(), wanted)
    state.advance(net.after(tokens))
    np.testing.assert_array_equal(net.out[:, tokens:], whole.out[:, tokens:])


def test_a_snapshot_that_cannot_be_exact_is_refused(fresh, monkeypatch):
    monkeypatch.setattr("npurt.hexagon.device.sessions.RESTART_SECONDS", 0.2)
    net = own(net_of({"heads": 2, "width": 64, "tokens": 3}))
    state = after(fresh, net, 2)
    state._in_memory = None
    tell("crash=1+")

    with pytest.raises(DeviceLost):
        state.exact()
