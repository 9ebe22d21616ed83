"""Gated delta nets asked of the device: batch, threads, VTCM, states kept, and what goes wrong."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.errors import DeviceLost, NumericsError, UnsupportedOp
from npurt.hexagon import delta, recurrence
from npurt.hexagon.device import HexagonDevice
from npurt.runtime.verify import LAMBDA
from tests.cpu import delta_oracle
from tests.cpu.test_delta import CONFIGURATIONS, NAMES, UPSTREAM, net_of
from tests.hexagon import delta_model
from tests.hexagon.delta_kernel import packed
from tests.hexagon.simulator import tell, way
from tests.llm import tiny
from tests.llm.reference import nmse

OPTIONS = {"n_ctx": 160, "n_threads": 2, "progress": False}


@pytest.fixture(scope="module")
def shared():
    with npurt.open_device("hexagon:sim") as device:
        yield device


@pytest.fixture
def fresh(simulator):
    with HexagonDevice("hexagon:test", way()) as device:
        yield device


def own(net):
    """Return *net* with a state and a result of its own."""
    return replace(net, state=net.state.copy(), out=np.full_like(net.out, np.nan))


def spread(net, *, sequences, heads, width):
    """Return *net* of another shape, whose elements share their memory."""

    def of(*shape):
        return np.broadcast_to(np.float32(0), (sequences, *shape))

    keys, values = of(1, 1, width), of(1, heads, width)
    state = of(heads, width, width)
    return replace(net, q=keys, k=keys, v=values, decay=of(1, heads, 1), state=state, out=values)


def run(device, net):
    net = own(net)
    assert device.why_not_delta(net) is None
    device.delta_net(net)
    return net


def modelled(net):
    """Return `out` and the state as the model of the kernels has them."""
    out, states = delta_model.run(net, packed(net))
    shape = delta.shape_of(net)
    read = np.empty_like(net.out)
    delta.read_rows(out, shape, read)
    values = [s.integers * (s.gain[:, None] / 2**31) * np.ldexp(1.0, s.exponents) for s in states]
    w = shape.width
    return read, np.stack([v[:w, :w].T for v in values]).reshape(net.state.shape)


# --- right ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", CONFIGURATIONS, ids=str)
def test_upstreams_configurations_are_within_its_threshold(shared, values):
    net = net_of(dict(zip(NAMES, values, strict=True)))
    reference, last, *_ = delta_oracle.delta(net)

    done = run(shared, net)

    assert nmse(done.out, reference) <= UPSTREAM
    assert nmse(done.state, last) <= UPSTREAM


shapes = st.fixed_dictionaries(
    {
        "heads": st.integers(1, 5),
        "width": st.sampled_from(range(16, delta.WIDEST + 1, 16)),
        "tokens": st.sampled_from([1, 3, 5, 20]),
        "sequences": st.integers(1, 3),
        "repeat": st.integers(1, 2),
        "kda": st.booleans(),
        "permute": st.booleans(),
        "grouped": st.booleans(),
    }
)


@given(shapes, st.integers(0, 2**32))
def test_threads_and_vtcm_give_the_bits_of_the_model(shared, shape, seed):
    net = net_of(shape, seed)
    out, state = modelled(net)

    done = run(shared, net)

    np.testing.assert_array_equal(done.out, out)
    np.testing.assert_allclose(done.state, state, rtol=2.0**-22, atol=2.0**-149)


def test_tokens_in_one_call_or_many_give_the_same_bits(shared):
    net = net_of({"heads": 3, "width": 64, "tokens": 30})
    whole = run(shared, net)

    parts = own(net)
    for start, count in ((0, 1), (1, 1), (2, 17), (19, 11)):
        shared.delta_net(parts.after(start).first(count))

    np.testing.assert_array_equal(parts.out, whole.out)
    np.testing.assert_array_equal(parts.state, whole.state)


def test_more_tokens_than_a_batch_takes_are_done_in_parts(shared, monkeypatch):
    net = net_of({"heads": 2, "width": 32, "tokens": 23, "sequences": 2})
    whole = run(shared, net)
    monkeypatch.setattr(recurrence, "MOST_TOKENS", 14)

    with npurt.open_device("hexagon:sim") as device:
        parts = run(device, net)

    np.testing.assert_array_equal(parts.out, whole.out)


@pytest.mark.parametrize("settings", ["vtcm=0", "hvx=1", "arch=v73"])
def test_less_of_a_dsp_gives_the_same_bits(shared, settings, simulator):
    net = net_of({"heads": 5, "width": 128, "tokens": 9, "kda": False})
    with HexagonDevice("hexagon:test", way(simulate=settings)) as device:
        other = run(device, net)

    np.testing.assert_array_equal(other.out, run(shared, net).out)


def test_no_tokens_change_nothing(shared):
    net = own(net_of({"heads": 1, "width": 16, "tokens": 2}))
    before = net.state.copy()

    shared.delta_net(net.first(0))

    np.testing.assert_array_equal(net.state, before)


# --- states that are kept ------------------------------------------------------------------------


def test_a_state_that_the_caller_changes_is_noticed(shared):
    """By one bit of one element."""
    net = own(net_of({"heads": 2, "width": 32, "tokens": 1}))
    shared.delta_net(net)
    net.state[0, 1, 5, 7] = np.nextafter(net.state[0, 1, 5, 7], np.float32(9))

    wanted, _ = modelled(net)
    shared.delta_net(net)

    np.testing.assert_array_equal(net.out, wanted)


def test_a_state_that_nobody_changes_is_not_sent_again(shared, monkeypatch):
    net = own(net_of({"heads": 2, "width": 32, "tokens": 1}))
    sent = []
    plain = delta.pack_state
    monkeypatch.setattr(delta, "pack_state", lambda *a: (sent.append(1), plain(*a)))

    for _ in range(3):
        shared.delta_net(net)

    assert len(sent) == 1


def test_a_state_that_is_put_back_goes_on_with_the_same_bits(shared):
    """float32 alone would lose six bits of it."""
    net = own(net_of({"heads": 3, "width": 64, "tokens": 30}))
    shared.delta_net(net.first(20))
    state, form = net.state.copy(), shared.delta_form(net)
    shared.delta_net(net.after(20))
    wanted, last = net.out.copy(), net.state.copy()

    net.state[...] = state
    shared.resume_delta(net, form)
    shared.delta_net(net.after(20))

    np.testing.assert_array_equal(net.out, wanted)
    np.testing.assert_array_equal(net.state, last)


def test_the_form_of_another_state_is_not_gone_on_with(shared):
    net = own(net_of({"heads": 2, "width": 32, "tokens": 2}))
    shared.delta_net(net.first(1))
    form = shared.delta_form(net)
    net.state[...] *= 2
    assert shared.delta_form(net) is None
    wanted, _ = modelled(net.after(1))

    shared.resume_delta(net, form)
    shared.delta_net(net.after(1))

    np.testing.assert_array_equal(net.out[:, 1:], wanted)


def test_only_so_many_states_are_kept(shared, monkeypatch):
    monkeypatch.setattr(recurrence, "MOST_STATES", 3)
    nets = [own(net_of({"heads": 1, "width": 16, "tokens": 2}, i)) for i in range(8)]
    wanted = [run(shared, net) for net in nets]

    for token, (i, net) in itertools.product(range(2), enumerate(nets)):
        shared.delta_net(net.after(token).first(1))
        assert len(shared._recurrence._states) <= 3, i

    # those that were dropped went through float32 once, whose error is far below the kernel's
    for net, whole in zip(nets, wanted, strict=True):
        assert nmse(net.out, whole.out) <= UPSTREAM


# --- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["q", "k", "v", "decay", "beta", "state"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused_and_the_state_stays(shared, field, value):
    good = own(net_of({"heads": 3, "width": 48, "tokens": 4}))
    array = getattr(good, field).copy()
    array[(0, -1, -1, -1)[: array.ndim]] = value
    bad = own(replace(good, **{field: array}))
    before = bad.state.copy()

    with pytest.raises(NumericsError):
        shared.delta_net(bad)

    np.testing.assert_array_equal(bad.state, before)
    np.testing.assert_array_equal(run(shared, good).out, modelled(good)[0])


def test_after_a_net_that_failed_half_way_its_state_is_sent_again(shared):
    """The DSP's own form has gone through tokens that do not count."""
    net = own(net_of({"heads": 2, "width": 32, "tokens": 5}))
    whole = run(shared, net)
    shared.delta_net(net.first(2))
    good = net.v[0, 4, 1, 3]
    net.v[0, 4, 1, 3] = np.nan
    with pytest.raises(NumericsError):
        shared.delta_net(net.after(2))

    net.v[0, 4, 1, 3] = good
    shared.delta_net(net.after(2))

    assert nmse(net.out, whole.out) <= UPSTREAM
    assert nmse(net.state, whole.state) <= UPSTREAM


@pytest.mark.parametrize("fault", ["crash=1", "invoke=1", "ssr=1:300"])
def test_a_net_over_which_the_dsp_dies_goes_on_from_its_state(fault, fresh):
    net = own(net_of({"heads": 2, "width": 64, "tokens": 3}))
    wanted = run(fresh, net)
    fresh.delta_net(net.first(1))
    tell(fault)

    fresh.delta_net(net.after(1).first(1))
    fresh.delta_net(net.after(2))

    assert fresh.news()
    assert nmse(net.out, wanted.out) <= UPSTREAM  # the state went through float32 on the way
    assert nmse(net.state, wanted.state) <= UPSTREAM


@pytest.mark.parametrize("width", [48, 64])  # with lanes of v that nobody reads, and without
def test_a_net_whose_results_do_not_arrive_with_the_reply_is_repeated(width, fresh):
    """As when the DSP keeps them in its cache: the memory is what it was before the call."""
    net = own(net_of({"heads": 3, "width": width, "tokens": 3}))
    wanted = run(fresh, net)
    fresh.delta_net(net.first(2))
    assert fresh.news() == []
    ((_, states),) = list(fresh._recurrence._states.items())[-1:]
    send, scratch = states._send, states._scratch.array

    def forgetful():
        before = scratch.copy()
        send()
        scratch[:] = before

    states._send = forgetful
    fresh.delta_net(net.after(2))

    (news,) = fresh.news()
    assert "results did not" in news
    assert nmse(net.out, wanted.out) <= UPSTREAM
    assert nmse(net.state, wanted.state) <= UPSTREAM


def test_a_device_that_is_given_up_leaves_the_state(fresh, monkeypatch):
    monkeypatch.setattr("npurt.hexagon.device.RESTART_SECONDS", 0.2)
    net = own(net_of({"heads": 2, "width": 64, "tokens": 2}))
    fresh.delta_net(net.first(1))
    before = net.state.copy()
    tell("crash=1+")

    with pytest.raises(DeviceLost):
        fresh.delta_net(net.after(1))

    np.testing.assert_array_equal(net.state, before)


def test_what_cannot_be_done_has_its_reason(shared):
    net = net_of({"heads": 2, "width": 32, "tokens": 1})
    wide = net_of({"heads": 1, "width": 144, "tokens": 1})
    two = replace(net, decay=np.zeros((1, 1, 2, 2), np.float32))
    odd = replace(net, k=np.zeros((1, 1, 3, 32), np.float32))
    apart = replace(net, state=net.state.transpose(0, 1, 3, 2))
    many = spread(net, sequences=513, heads=2, width=32)
    rows = spread(net, sequences=512, heads=64, width=128)
    states = spread(net, sequences=8, heads=4056, width=128)
    cases = {"513 sequences": many, "33554432 bytes": rows, "largest block": states}
    for reason, case in cases.items():
        assert reason in shared.why_not_delta(case)

    cases = {"144 wide": wide, "2 decays": two, "do not share 3": odd, "not contiguous": apart}

    for reason, case in cases.items():
        assert reason in shared.why_not_delta(case)
        with pytest.raises(UnsupportedOp, match=reason):
            shared.delta_net(case)


# --- models --------------------------------------------------------------------------------------


def test_a_models_delta_nets_are_on_the_device_and_within_their_bound():
    ids = tiny.ids("qwen35", 40)
    with npurt.Llama(tiny.path("qwen35", "q8_0"), "hexagon:sim", verify="always", **OPTIONS) as llm:
        rows = [llm.eval(ids[:30]), *(llm.eval([token]) for token in ids[30:])]
        report = llm.report()
    nets = [row for row in report.rows if row.op == "delta net" and row.calls]

    assert {(row.planned, row.actual) for row in nets} == {("hexagon:sim", "hexagon:sim")}
    assert all(row.verified == row.calls and row.failed == 0 for row in nets)
    assert np.isfinite(np.concatenate(rows)).all()


def test_delta_nets_add_less_to_logits_than_int8_products_do(monkeypatch):
    """With the nets of a model there, and on the host; and all of it on the host."""
    ids = tiny.ids("qwen35", 40)

    def logits(device):
        with npurt.Llama(tiny.path("qwen35", "q8_0"), device, **OPTIONS) as llm:
            return llm.eval(ids)

    on_device, host = logits("hexagon:sim"), logits("cpu")
    monkeypatch.setattr(HexagonDevice, "why_not_delta", lambda self, net: "not today")
    nets_on_host = logits("hexagon:sim")

    assert nmse(on_device, nets_on_host) < nmse(nets_on_host, host)


def test_the_bound_of_verification_is_above_the_threshold_and_below_any_mistake():
    assert UPSTREAM**0.5 < LAMBDA * delta.ERROR < 0.01
