"""States of delta nets that stay on the DSP: read, written, taken back; and a DSP that is lost."""

import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from npurt.device import state_values
from npurt.errors import DeviceLost, NumericsError, StateFormatError
from npurt.hexagon.device import delta_state
from npurt.hexagon.device.device import HexagonDevice
from npurt.hexagon.layout import delta
from npurt.llm.state import state_file
from tests.cpu import delta_oracle
from tests.cpu.delta_nets import UPSTREAM, net_of
from tests.hexagon.delta_nets import OPTIONS, SHAPES, modelled, own, run
from tests.hexagon.simulator import connection, kill, tell
from tests.llm import tiny
from tests.llm.reference import nmse

KEPT = delta_state.MOST_ROWS  # as many tokens as can be done again


@pytest.fixture(scope="module")
def shared():
    with npurt.open_device("hexagon:sim") as device:
        yield device


@pytest.fixture
def fresh(simulator):
    with HexagonDevice("hexagon:test", connection()) as device:
        yield device


def one_by_one(state, net):
    """Take *state* through the tokens of *net*, a call each."""
    for token in range(net.v.shape[1]):
        state.advance(net.after(token).first(1))


def test_a_state_stays_there_until_somebody_asks(shared, monkeypatch):
    """No float32 is made of it, and the one that it began with is not looked at again."""
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
    """Bit for bit, in any order."""
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
    """To the last bit, until it goes forward."""
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
    """Two models on a device, say; also of the same array."""
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
    net = own(net_of({"heads": 1, "width": 16, "tokens": 3 * KEPT}))
    state = shared.delta_state(net)
    for token in range(3 * KEPT):
        state.advance(net.after(token).first(1))
        assert len(state._version.rows) <= KEPT
    state.advance(net)
    assert not state._version.rows


def test_states_that_nobody_has_any_more_leave_their_memory(fresh):
    net = own(net_of({"heads": 8, "width": 128, "tokens": 1}))
    for _ in range(100):
        fresh.delta_state(net).advance(net)

    assert len(fresh._sessions[0]._own) <= 2
    assert len(fresh._states) <= 1


@given(SHAPES, st.integers(0, 2**32))
def test_what_the_host_does_with_rows_is_a_delta_net(shape, seed):
    net = net_of(shape, seed)
    _, last, *_ = delta_oracle.delta(net)
    shape = delta.shape_of(net)
    rows = np.full((*net.v.shape[:2], shape.row_bytes[0] // 4), np.nan, np.float32)
    delta.Row.of(rows, shape).write(net)
    half = rows.shape[1] // 2

    done = delta.passed(net.state, (rows[:, :half], rows[:, half:]), shape)

    # roundings to float64 and to float32, of elements that may be the sum of larger ones
    size = np.abs(last).max() + np.abs(net.state).max()
    np.testing.assert_allclose(done, last, rtol=2.0**-24, atol=2.0**-40 * size)


# --- a DSP that is lost, calls that fail ----------------------------------------------------------


def kill_dsp_of(device):
    kill(device._sessions[0].transport.slot.effective)


def after(device, net, tokens):
    """Return a state that went through the first *tokens* of *net* one by one."""
    state = device.delta_state(net)
    one_by_one(state, net.first(tokens))
    return state


@pytest.mark.parametrize("tokens", [0, 2, KEPT, KEPT + 1])
def test_a_net_that_fails_half_way_leaves_the_state(tokens, shared):
    """The DSP's own form has gone through tokens that do not count."""
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
    monkeypatch.setattr(delta_state, "MOST_TOKENS", 4)
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
@pytest.mark.parametrize("tokens", [1, 5, KEPT, KEPT + 2])
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
    plain, loads = delta_state.Memory.load, []

    def load(memory, form):
        loads.append(form.count)
        if len(loads) == 1:
            tell("crash=3")  # the third of seven
        plain(memory, form)

    monkeypatch.setattr(delta_state.Memory, "load", load)
    tell("crash=1")

    state.advance(net.after(7))

    assert loads == [7, 7]
    assert len(fresh.events()) == 2
    np.testing.assert_array_equal(net.out, wanted.out)


def test_a_dsp_that_dies_between_calls_takes_no_state_with_it(fresh):
    """That of another session's memory is copied, and nothing done again."""
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
    """Have *meddle* called with what sends a call of *state*, in its place."""
    memory = state._memory
    send = memory._send

    def once(*blocks):
        memory._send = send
        meddle(lambda: send(*blocks))

    memory._send = once


@pytest.mark.parametrize("sent", [False, True])
def test_a_call_that_is_interrupted_changes_nothing(sent, shared):
    """By Ctrl-C, before it was sent or after: the DSP may have gone on."""
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


@pytest.mark.parametrize("width", [48, 64])  # with lanes of v that nobody reads, and without
def test_a_net_whose_results_do_not_arrive_with_the_reply_is_repeated(width, fresh):
    """As when the DSP keeps them in its cache: the memory is what it was before the call."""
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


@pytest.mark.parametrize("tokens", [0, 1, 20, KEPT + 2])
def test_the_state_of_a_device_that_is_given_up_can_be_read(tokens, fresh, monkeypatch):
    """The tokens since the last copy are done in double: closer to it the kernel is not either."""
    monkeypatch.setattr("npurt.hexagon.device.device.RESTART_SECONDS", 0.2)
    net = own(net_of({"heads": 2, "width": 64, "tokens": tokens + 1}))
    wanted = run(fresh, net.first(tokens))
    state = after(fresh, net, tokens)
    tell("crash=1+")

    with pytest.raises(DeviceLost):
        state.advance(net.after(tokens))

    assert nmse(state.read(), wanted.state) <= UPSTREAM


def test_a_device_that_is_given_up_leaves_the_state_of_the_caller(fresh, monkeypatch):
    monkeypatch.setattr("npurt.hexagon.device.device.RESTART_SECONDS", 0.2)
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


# --- snapshots and files --------------------------------------------------------------------------


def through_words(exact, net):
    """Return *exact* after it was in the DSP's own form."""
    shape = delta.shape_of(net)
    return delta.exact_state(delta.words_of(exact, shape), shape)


@settings(max_examples=40)
@given(SHAPES, st.integers(0, 2**32), st.integers(0, 19))
def test_a_state_goes_on_from_a_snapshot_as_if_nothing_had_been(shared, shape, seed, token):
    """Bit for bit, on a device that had other states meanwhile; so does one of the snapshot's."""
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
    """1.5 and -0.75 in a row: 30 bits of the greatest, whose exponent is that of the row."""
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


@pytest.mark.parametrize("tokens", [0, 3, KEPT + 2])
def test_a_snapshot_of_a_dsp_that_has_died_is_exact(tokens, fresh):
    """What it held is done again."""
    net = own(net_of({"heads": 2, "width": 64, "tokens": tokens + 1}))
    whole = run(fresh, net)
    state = after(fresh, net, tokens)
    wanted = state.exact()
    state = after(fresh, net, tokens)
    state._in_memory = None  # as after a call that broke off
    kill_dsp_of(fresh)

    np.testing.assert_array_equal(state.exact(), wanted)
    state.advance(net.after(tokens))
    np.testing.assert_array_equal(net.out[:, tokens:], whole.out[:, tokens:])


def test_a_snapshot_that_cannot_be_exact_is_refused(fresh, monkeypatch):
    monkeypatch.setattr("npurt.hexagon.device.device.RESTART_SECONDS", 0.2)
    net = own(net_of({"heads": 2, "width": 64, "tokens": 3}))
    state = after(fresh, net, 2)
    state._in_memory = None
    tell("crash=1+")

    with pytest.raises(DeviceLost):
        state.exact()


# --- in a model ----------------------------------------------------------------------------------


def in_parts(llm, then=lambda token: None):
    """Return logits of 40 tokens: 20 at once, and the others one by one, after *then*."""
    ids = tiny.ids("qwen35", 40)
    rows = [llm.eval(ids[:20])]
    for token in range(20, 40):
        then(token)
        rows.append(llm.eval(ids[token : token + 1]))
    return np.concatenate(rows)


def opened(device, **options):
    return npurt.Llama(tiny.path("qwen35", "q8_0"), device, **OPTIONS | options)


@pytest.fixture(scope="module")
def undisturbed():
    with opened("hexagon:sim") as llm:
        return in_parts(llm)


@pytest.mark.parametrize("fault", ["kill", "crash=1", "crash=2", "crash=5", "ssr=1:300"])
def test_a_dsp_that_dies_in_the_middle_of_a_text_costs_no_bit(fault, undisturbed, simulator):
    with opened("hexagon:sim", strict=True) as llm:

        def die(token):
            if token == 33:
                kill_dsp_of(llm.device) if fault == "kill" else tell(fault)

        y = in_parts(llm, die)
        notes = llm.report().notes

    np.testing.assert_array_equal(y, undisturbed)
    assert sum("opened again" in note for note in notes) == 1


def test_the_cpu_goes_on_from_the_states_of_a_dsp_that_is_lost_for_good(undisturbed, simulator):
    """As close as the nets of the whole text on the CPU; and back to a copy that the DSP made."""
    with opened("cpu") as llm:
        near = 2 * nmse(in_parts(llm)[33:], undisturbed[33:])  # both are draws of rounding

    with opened("hexagon:sim") as llm:

        def die(token):
            if token in (24, 27, 33):
                kill_dsp_of(llm.device)

        y = in_parts(llm, die)
        assert llm.state.recurrent.reach(32) == 32
        llm.rewind(32)
        again = llm.eval(tiny.ids("qwen35", 40)[32:])
        report = llm.report()

    nets = {row.actual for row in report.rows if row.op == "delta net" and row.calls}
    assert nets == {"hexagon:sim", "cpu"}
    np.testing.assert_array_equal(y[:33], undisturbed[:33])
    assert nmse(y[33:], undisturbed[33:]) <= near
    assert nmse(again[1:], undisturbed[33:]) <= near


def test_two_models_on_a_device_have_states_of_their_own(undisturbed):
    with npurt.open_device("hexagon:sim") as device:
        one, other = opened(device), opened(device)
        rows = in_parts(one, lambda token: other.eval([token, token + 1]))
        np.testing.assert_array_equal(rows, undisturbed)
        other.reset()
        np.testing.assert_array_equal(in_parts(other), undisturbed)


def test_reading_the_states_of_a_model_changes_nothing(undisturbed, tmp_path):
    with opened("hexagon:sim") as llm:
        y = in_parts(llm, lambda token: llm.save_state(tmp_path / "state"))

    np.testing.assert_array_equal(y, undisturbed)


def test_loading_and_restoring_a_state_costs_no_bit(undisturbed, tmp_path):
    """Loaded, restored, cleared, each with other states on the DSP."""
    ids = tiny.ids("qwen35", 40)
    with opened("hexagon:sim") as llm:
        llm.eval(ids[:20])
        for token in ids[20:30]:
            llm.eval([token])
        llm.save_state(tmp_path / "state")
        snapshot = llm.snapshot()
        llm.eval(ids[:9])
        llm.load_state(tmp_path / "state")
        for a, b in zip(llm.snapshot().arrays, snapshot.arrays, strict=True):
            np.testing.assert_array_equal(a, b)
        loaded = llm.eval(ids[30:])
        llm.restore(snapshot)
        restored = llm.eval(ids[30:])
        llm.reset()
        np.testing.assert_array_equal(in_parts(llm), undisturbed)
        assert not any("rounded" in note for note in llm.report().notes)

    np.testing.assert_array_equal(loaded, undisturbed[30:])
    np.testing.assert_array_equal(restored, undisturbed[30:])


CONTINUE = """
import sys
import numpy as np
import npurt
model, device, state, out, *ids = sys.argv[1:]
with npurt.Llama(model, device, n_ctx=160, n_threads=2, progress=False) as llm:
    if state:
        llm.load_state(state)
    text = "".join(llm.generate([*llm.history, *map(int, ids)], max_tokens=12, temperature=0))
    np.save(out, llm.eval([1, 2, 3]))
print(repr(text))
"""


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
@pytest.mark.parametrize("device", ["hexagon:sim", "cpu"])
def test_another_process_goes_on_from_a_file_as_if_it_were_this_one(device, kind, tmp_path):
    """The same text and logits: a state that was loaded, and one that is still there."""
    ids = tiny.ids("qwen35", 30)
    path = tiny.path("qwen35", kind)
    with npurt.Llama(path, device, **OPTIONS) as llm:
        llm.eval(ids[:20])
        for token in ids[20:27]:
            llm.eval([token])
        llm.save_state(tmp_path / "state")
        text = "".join(llm.generate([*llm.history, *ids[27:]], max_tokens=12, temperature=0))
        wanted = llm.eval([1, 2, 3])

    arguments = [path, device, tmp_path / "state", tmp_path / "y.npy", *ids[27:]]
    done = subprocess.run(
        [sys.executable, "-c", CONTINUE, *map(str, arguments)], text=True, capture_output=True
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{text!r}\n"
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), wanted)


@pytest.mark.parametrize("there", ["cpu", "hexagon:sim"])
def test_a_state_of_another_kind_of_device_is_rounded_and_the_report_says_so(there, tmp_path):
    """No worse than what the two devices differ by anyway."""
    ids = tiny.ids("qwen35", 40)
    here = "hexagon:sim" if there == "cpu" else "cpu"
    with opened(here) as llm:
        llm.eval(ids[:30])
        llm.save_state(tmp_path / "state")
        own = llm.eval(ids[30:])
    with opened(there) as llm:
        straight = llm.eval(ids)[30:]
        llm.load_state(tmp_path / "state")
        moved = llm.eval(ids[30:])
        notes = llm.report().notes
        snapshot = llm.snapshot()
        assert snapshot.integers == (there == "hexagon:sim")

    assert sum("came from another kind of device" in note for note in notes) == 1
    assert nmse(moved, straight) <= 2 * nmse(own, straight)


def test_integers_that_are_no_state_are_refused(tmp_path):
    with opened("hexagon:sim") as llm:
        llm.eval([1, 2, 3])
        good = llm.snapshot()
        layer = next(i for i, a in enumerate(good.arrays) if a.dtype == np.int32)
        for column, value in ((0, -(1 << 31)), (-2, 1 << 30), (-1, 0)):
            wrong = good.arrays[layer].copy()
            wrong[0, 0, column] = value
            arrays = (*good.arrays[:layer], wrong, *good.arrays[layer + 1 :])
            state_file.save(replace(good, arrays=arrays), tmp_path / "state")
            with pytest.raises(StateFormatError, match="no state to go on from"):
                llm.load_state(tmp_path / "state")
        assert llm.history == (1, 2, 3)


def test_ctrl_c_in_the_middle_of_a_net_leaves_no_trace(undisturbed, monkeypatch):
    plain, calls = delta_state.Memory.run, []

    def run(memory, rows):
        y = plain(memory, rows)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return y

    with opened("hexagon:sim") as llm:

        def interrupted(token):
            calls.clear()
            monkeypatch.setattr(delta_state.Memory, "run", run)
            with pytest.raises(KeyboardInterrupt):
                llm.eval(tiny.ids("qwen35", 20))
            monkeypatch.undo()

        y = in_parts(llm, interrupted)

    np.testing.assert_array_equal(y, undisturbed)
