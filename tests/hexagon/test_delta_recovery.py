"""Test states of delta nets on a DSP that dies, or whose calls fail: no bit of a result changes."""

import numpy as np
import pytest

import npurt
from npurt.cpu.device import CpuDevice
from npurt.cpu.state.slots import Slots
from npurt.errors import DeviceLost, NumericsError
from npurt.hexagon.device import delta_memory
from npurt.hexagon.device.delta_memory import DeltaMemory
from tests.cpu.delta_nets import UPSTREAM, net_of
from tests.hexagon.delta_nets import (
    MAX_REPLAYED,
    after,
    kill_dsp_of,
    one_by_one,
    own,
    run,
)
from tests.hexagon.simulator import tell
from tests.llm.reference import nmse


@pytest.mark.parametrize("tokens", [0, 2, MAX_REPLAYED, MAX_REPLAYED + 1])
def test_a_net_that_fails_half_way_leaves_the_state(tokens, shared):
    """The DSP's state has advanced by tokens of the failed call, which must not count."""
    net = own(net_of({"heads": 2, "width": 32, "tokens": tokens + 3}))
    whole = run(shared, net)
    state = after(shared, net, tokens)
    good = net.v[0, -1, 1, 3]
    net.v[0, -1, 1, 3] = np.nan
    with pytest.raises(NumericsError):
        state.advance(net.after(tokens))

    net.v[0, -1, 1, 3] = good
    state.advance(net.after(tokens))

    np.testing.assert_array_equal(net.out, whole.out)
    np.testing.assert_array_equal(state.read(), whole.state)


def test_a_part_of_a_net_that_was_done_is_undone_with_the_rest(monkeypatch):
    monkeypatch.setattr(delta_memory, "MAX_TOKENS", 4)
    net = own(net_of({"heads": 2, "width": 32, "tokens": 11}))
    with npurt.open_device("hexagon:sim") as device:
        state = after(device, net, 2)
        before, good = state.read(), net.v[0, 9, 1, 3]
        net.v[0, 9, 1, 3] = np.nan  # in the third call
        with pytest.raises(NumericsError):
            state.advance(net.after(2))
        assert nmse(state.read(), before) <= UPSTREAM
        net.v[0, 9, 1, 3] = good
        state.advance(net.after(2))

        np.testing.assert_array_equal(net.out, run(device, net).out)


@pytest.mark.parametrize("fault", ["crash=1", "invoke=1", "ssr=1:300"])
@pytest.mark.parametrize("tokens", [1, 5, MAX_REPLAYED, MAX_REPLAYED + 2])
def test_a_net_over_which_the_dsp_dies_gives_the_bits_it_would_have(fault, tokens, fresh):
    net = own(net_of({"heads": 2, "width": 64, "tokens": tokens + 3}))
    wanted = run(fresh, net)
    state = after(fresh, net, tokens)
    tell(fault)

    state.advance(net.after(tokens).first(2))
    state.advance(net.after(tokens + 2))

    assert fresh.events()
    np.testing.assert_array_equal(net.out, wanted.out)
    np.testing.assert_array_equal(state.read(), wanted.state)


def test_the_dsp_may_die_again_over_making_a_state_again(fresh, monkeypatch):
    net = own(net_of({"heads": 2, "width": 64, "tokens": 8}))
    wanted = run(fresh, net)
    state = after(fresh, net, 7)
    plain, loads = DeltaMemory.load, []

    def load(memory, form):
        loads.append(form.count)
        if len(loads) == 1:
            tell("crash=3")  # the third of seven
        plain(memory, form)

    monkeypatch.setattr(DeltaMemory, "load", load)
    tell("crash=1")

    state.advance(net.after(7))

    assert loads == [7, 7]
    assert len(fresh.events()) == 2
    np.testing.assert_array_equal(net.out, wanted.out)


def test_a_dsp_that_dies_between_calls_takes_no_state_with_it(fresh):
    """A state in the memory of another session is copied, and no token is repeated."""
    nets = [own(net_of({"heads": 2, "width": 64, "tokens": 9}, i)) for i in range(3)]
    wanted = [run(fresh, net) for net in nets]
    states = [after(fresh, net, 6) for net in nets]
    kill_dsp_of(fresh)

    for net, state, whole in zip(nets, states, wanted, strict=True):
        state.advance(net.after(6))
        np.testing.assert_array_equal(net.out, whole.out)
        np.testing.assert_array_equal(state.read(), whole.state)
    assert fresh.events()


def meddled(state, meddle):
    """Replace the function that sends a call of *state*; call *meddle* with that function."""
    memory = state._memory
    send = memory._send

    def once(*blocks):
        memory._send = send
        meddle(lambda: send(*blocks))

    memory._send = once


@pytest.mark.parametrize("sent", [False, True])
def test_a_call_that_is_interrupted_changes_nothing(sent, shared):
    """Ctrl-C may come before the message is sent or after it, when the DSP may have advanced."""
    net = own(net_of({"heads": 2, "width": 64, "tokens": 5}))
    whole = run(shared, net)
    state = after(shared, net, 3)

    def interrupt(send):
        if sent:
            send()
        raise KeyboardInterrupt

    meddled(state, interrupt)
    with pytest.raises(KeyboardInterrupt):
        state.advance(net.after(3))
    assert nmse(state.read(), run(shared, net.first(3)).state) <= UPSTREAM
    state.advance(net.after(3))

    np.testing.assert_array_equal(net.out, whole.out)
    np.testing.assert_array_equal(state.read(), whole.state)


@pytest.mark.parametrize("width", [48, 64])  # with unused lanes of v, and without
def test_a_net_whose_results_do_not_arrive_with_the_reply_is_repeated(width, fresh):
    """The results remain in the DSP's cache, so the memory is the same as before the call."""
    net = own(net_of({"heads": 3, "width": width, "tokens": 3}))
    wanted = run(fresh, net)
    state = after(fresh, net, 2)
    assert fresh.events() == []
    y = state._memory._blocks[1].array

    def forgetful(send):
        before = y.copy()
        send()
        y[:] = before

    meddled(state, forgetful)
    state.advance(net.after(2))

    (events,) = fresh.events()
    assert "results did not" in events
    np.testing.assert_array_equal(net.out, wanted.out)
    np.testing.assert_array_equal(state.read(), wanted.state)


@pytest.mark.parametrize("tokens", [0, 1, 20, MAX_REPLAYED + 2])
def test_the_state_of_a_device_that_is_given_up_can_be_read(tokens, fresh, monkeypatch):
    """The tokens since the last copy are repeated in double; the kernel's error is not smaller."""
    monkeypatch.setattr("npurt.hexagon.device.sessions.RESTART_SECONDS", 0.2)
    net = own(net_of({"heads": 2, "width": 64, "tokens": tokens + 1}))
    wanted = run(fresh, net.first(tokens))
    state = after(fresh, net, tokens)
    tell("crash=1+")

    with pytest.raises(DeviceLost):
        state.advance(net.after(tokens))

    assert nmse(state.read(), wanted.state) <= UPSTREAM


@pytest.mark.parametrize("tokens", [0, 1, 20, MAX_REPLAYED + 2])
def test_the_cpu_continues_from_a_device_that_is_given_up_with_its_bits(tokens, fresh, monkeypatch):
    """The CPU continues from the state, and from a checkpoint of it."""
    monkeypatch.setattr("npurt.hexagon.device.sessions.RESTART_SECONDS", 0.2)
    net = own(net_of({"heads": 2, "width": 64, "tokens": tokens + 3}))
    wanted = run(fresh, net)
    slots = Slots(net.state[None].copy())
    slots.move(lambda: fresh.delta_state(net))
    one_by_one(slots.state, net.first(tokens))
    slots.save(1)
    one_by_one(slots.state, net.after(tokens).first(2))
    tell("crash=1+")
    with pytest.raises(DeviceLost):
        slots.state.advance(net.after(tokens + 2))

    with CpuDevice(1) as cpu:
        slots.move(lambda: cpu.integer_delta_state(net))
        for start in (tokens + 2, tokens):
            net.out[...] = np.nan
            slots.state.advance(net.after(start))
            np.testing.assert_array_equal(net.out[:, start:], wanted.out[:, start:])
            np.testing.assert_array_equal(slots.read(), wanted.state)
            slots.restore_checkpoint(1)


def test_a_device_that_is_given_up_leaves_the_state_of_the_caller(fresh, monkeypatch):
    monkeypatch.setattr("npurt.hexagon.device.sessions.RESTART_SECONDS", 0.2)
    net = own(net_of({"heads": 2, "width": 64, "tokens": 2}))
    before = net.state.copy()
    tell("crash=1+")

    with pytest.raises(DeviceLost):
        fresh.delta_net(net)

    np.testing.assert_array_equal(net.state, before)


def test_the_state_of_a_device_that_is_closed_can_be_read(fresh):
    net = own(net_of({"heads": 2, "width": 64, "tokens": 3}))
    wanted = run(fresh, net)
    state = after(fresh, net, 3)

    fresh.close()

    np.testing.assert_array_equal(state.read(), wanted.state)
