"""Tests of delta nets on a device that fails or computes wrong results: the CPU takes over."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.device.delta import DeltaError
from npurt.device.delta_check import is_right
from npurt.device.device import FLUSHED, UNIT
from npurt.errors import DeviceLost, VerificationFailed
from npurt.llm.session.context import Context, Piece, run_together
from tests.cpu import delta_oracle
from tests.cpu.delta_nets import net_of
from tests.llm import tiny
from tests.runtime.test_parts_elsewhere import DeltaDevice, nothing_but

ERROR = DeltaError(16 * UNIT, FLUSHED)  # the bound for float32 in the contract


class Meddling(DeltaDevice):
    """A device that does *what* to every net after the first *well* nets."""

    def __init__(self, what, well=0):
        super().__init__(refuses=nothing_but())
        self.what, self.well = what, well

    def delta_net(self, net):
        before = net.state.copy()
        super().delta_net(net)
        if self.nets > self.well:
            if self.what is lost:
                net.state[...] = before  # as the contract requires
            self.what(net)


def lost(net):
    net.out[:] = np.nan
    raise DeviceLost("it is gone", remedy="none", call="delta_net", code=1)


def wrong_result(net):
    net.out[:] *= np.float32(1.5)


def wrong_state(net):
    net.state[..., 0] += np.float32(0.5)


def logits(device, verify="always"):
    ids = tiny.ids("qwen35", 50)
    with npurt.Llama(tiny.path("qwen35", "f32"), device, n_ctx=160, verify=verify) as llm:
        rows = [llm.eval(ids[:40]), *(llm.eval([token]) for token in ids[40:])]
        return np.concatenate(rows), llm.report()


@pytest.mark.parametrize("well", [0, 5])
@pytest.mark.parametrize("what", [lost, wrong_result, wrong_state])
def test_the_cpu_goes_on_and_no_bit_is_lost(what, well):
    plain, _ = logits("cpu")

    y, report = logits(Meddling(what, well))

    np.testing.assert_array_equal(y, plain)
    rows = [row for row in report.rows if row.op == "delta net" and row.calls]
    assert {row.actual for row in rows if row.reason} == {"cpu"}
    assert any("the CPU takes over delta nets" in note for note in report.notes)
    if what is not lost:
        assert sum(row.failed for row in rows) > 0


@pytest.mark.parametrize("what", [lost, wrong_result])
def test_the_cpu_goes_on_with_the_states_of_each_sequence(what):
    """Each sequence has a separate state on the CPU, as on the device."""
    path, ids = tiny.path("qwen35", "f32"), tiny.ids("qwen35", 40)
    texts, options = [ids[:12], ids[20:32], ids[5:17]], {"n_ctx": 64, "verify": "always"}
    with npurt.Llama(path, "cpu", **options) as llm:
        wanted = []
        for text in texts:
            llm.reset()
            wanted.append(llm.eval(text)[-4:])

    with npurt.Llama(path, Meddling(what, 40), max_sequences=4, **options) as llm:
        contexts = [Context(llm.model) for _ in texts]
        out = np.empty((3, llm.config.n_vocab), np.float32)
        run_together([Piece(c, text[:8], 1) for c, text in zip(contexts, texts, strict=True)], out)
        found = []
        for at in range(8, 12):
            assert run_together(
                [Piece(c, [text[at]], 1) for c, text in zip(contexts, texts, strict=True)], out
            )
            found.append(out.copy())
        notes = llm.report().notes

    assert any("the CPU takes over delta nets" in note for note in notes)
    np.testing.assert_array_equal(np.swapaxes(found, 0, 1), wanted)


def test_what_is_not_looked_at_is_not_found():
    """Without verification a wrong result passes, so the tests above test the verification."""
    plain, _ = logits("cpu")

    y, report = logits(Meddling(wrong_result), verify="off")

    assert not np.array_equal(y, plain)
    assert not any(row.failed for row in report.rows)


def test_a_net_that_is_wrong_everywhere_is_an_error(monkeypatch):
    monkeypatch.setattr("npurt.runtime.execute.recurrence.is_right", lambda *_: False)

    with pytest.raises(VerificationFailed, match="wrong on fake and on the CPU"):
        logits(DeltaDevice(refuses=nothing_but()))


# --- the bound -----------------------------------------------------------------------------------

shapes = st.fixed_dictionaries(
    {
        "heads": st.integers(1, 3),
        "width": st.sampled_from([16, 48, 128]),
        "tokens": st.sampled_from([1, 7, 30]),
        "sequences": st.integers(1, 2),
        "repeat": st.integers(1, 2),
        "kda": st.booleans(),
        "grouped": st.booleans(),
    }
)


def exact(net):
    """Return *net* with float64 results rounded to float32, and its initial state."""
    out, state, *_ = delta_oracle.delta(net)
    done = replace(net, out=out.astype(np.float32), state=state.astype(np.float32))
    return done, net.state


def passes(done, before, seed=0):
    head = random.Random(seed).randrange(done.v.shape[2])
    one = slice(head, head + 1)
    return is_right(done, head, before[:, one], done.state[:, one], ERROR)


@given(shapes, st.integers(0, 2**32))
def test_what_is_right_passes(shape, seed):
    done, before = exact(net_of(shape, seed))

    assert passes(done, before, seed)


@given(shapes, st.integers(0, 2**32), st.booleans())
def test_what_is_off_by_a_hundredth_in_every_head_does_not(shape, seed, of_state):
    done, before = exact(net_of(shape, seed))
    array = done.state if of_state else done.out
    rng = np.random.default_rng(seed)
    size = np.sqrt((array**2).mean(axis=(-2, -1) if of_state else (1, 3), keepdims=True))
    array += np.float32(0.01) * size * rng.choice([-1, 1], array.shape).astype(np.float32)

    assert not passes(done, before, seed)


def test_numbers_that_are_none_are_not_right():
    done, before = exact(net_of({"heads": 1, "width": 16, "tokens": 3}))
    done.out[0, 1, 0, 3] = np.nan

    assert not passes(done, before)
    for array in (done.out, done.state):
        array.view(np.uint32)[:] = 0x7FA00000  # signalling NaN: a warning would fail the test
        assert not passes(done, before)
