"""Test gated delta nets on the device: batches, threads, VTCM and refusals."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.device.device import LAMBDA
from npurt.errors import NumericsError, UnsupportedOp
from npurt.hexagon.device import delta_memory
from npurt.hexagon.device.device import HexagonDevice
from npurt.hexagon.layout import delta
from tests.cpu import delta_oracle
from tests.cpu.delta_nets import CONFIGURATIONS, UPSTREAM, configured, net_of
from tests.hexagon.delta_nets import OPTIONS, SHAPES, modelled, own, run
from tests.hexagon.simulator import connection
from tests.llm import tiny
from tests.llm.reference import nmse


def broadcast(net, *, sequences, heads, width):
    """Return *net* with another shape, whose elements share memory."""

    def of(*shape):
        return np.broadcast_to(np.float32(0), (sequences, *shape))

    keys, values = of(1, 1, width), of(1, heads, width)
    state = of(heads, width, width)
    return replace(net, q=keys, k=keys, v=values, decay=of(1, heads, 1), state=state, out=values)


# --- right ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", CONFIGURATIONS, ids=str)
def test_upstreams_configurations_are_within_its_threshold(shared, values):
    net = configured(values)
    reference, last, *_ = delta_oracle.delta(net)

    done = run(shared, net)

    assert nmse(done.out, reference) <= UPSTREAM
    assert nmse(done.state, last) <= UPSTREAM


@given(SHAPES, st.integers(0, 2**32))
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
    state = shared.delta_state(parts)
    for start, count in ((0, 1), (1, 1), (2, 17), (19, 11)):
        state.advance(parts.after(start).first(count))

    np.testing.assert_array_equal(parts.out, whole.out)
    np.testing.assert_array_equal(state.read(), whole.state)


def test_more_tokens_than_a_batch_takes_are_done_in_parts(shared, monkeypatch):
    net = net_of({"heads": 2, "width": 32, "tokens": 23, "sequences": 2})
    whole = run(shared, net)
    monkeypatch.setattr(delta_memory, "MAX_TOKENS", 14)

    with npurt.open_device("hexagon:sim") as device:
        parts = run(device, net)

    np.testing.assert_array_equal(parts.out, whole.out)


@pytest.mark.parametrize("settings", ["vtcm=0", "hvx=1", "arch=v73"])
def test_less_of_a_dsp_gives_the_same_bits(shared, settings, simulator):
    net = net_of({"heads": 5, "width": 128, "tokens": 9, "kda": False})
    with HexagonDevice("hexagon:test", connection(simulate=settings)) as device:
        other = run(device, net)

    np.testing.assert_array_equal(other.out, run(shared, net).out)


def test_no_tokens_change_nothing(shared):
    net = own(net_of({"heads": 1, "width": 16, "tokens": 2}))
    before = net.state.copy()

    shared.delta_net(net.first(0))

    np.testing.assert_array_equal(net.state, before)


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


def test_what_cannot_be_done_has_its_reason(shared):
    net = net_of({"heads": 2, "width": 32, "tokens": 1})
    wide = net_of({"heads": 1, "width": 144, "tokens": 1})
    two = replace(net, decay=np.zeros((1, 1, 2, 2), np.float32))
    odd = replace(net, k=np.zeros((1, 1, 3, 32), np.float32))
    apart = replace(net, state=net.state.transpose(0, 1, 3, 2))
    many = broadcast(net, sequences=513, heads=2, width=32)
    rows = broadcast(net, sequences=512, heads=64, width=128)
    states = broadcast(net, sequences=8, heads=4056, width=128)
    cases = {
        "513 sequences": many,
        f"{delta_memory.BATCH_BYTES} bytes": rows,
        "largest shared block": states,
    }
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
    """The test compares delta nets on the DSP and on the host, and a model on the host only."""
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
