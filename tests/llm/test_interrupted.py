"""Tests of interruption: after Ctrl-C at any point, a context continues with the same results."""

import numpy as np
import pytest

import npurt
from npurt.cpu.lowering.segment import CpuSegment
from npurt.cpu.state import kv
from npurt.cpu.state.states import SequenceStates
from npurt.errors import DriverError
from npurt.reference.segment import ReferenceSegment
from npurt.runtime.execute.plan import Plan
from tests.llm import tiny
from tests.runtime.test_execute import Partial

MODELS = ("llama3", "qwen35", "qwen3moe")
# The bound on the rounding of sums in numpy, which depends on the number of rows.  Logits are below
# 16; logits of other tokens would differ by whole units.
ROUNDING = 2.0**-10
OPTIONS = {"n_ctx": 128, "n_batch": 16, "verify": "off", "progress": False}


def opened(model, device="cpu", **options):
    return npurt.Llama(tiny.path(model, "f32"), device, **OPTIONS | options)


def interrupt(monkeypatch, owner, name, call):
    """Make call number *call* of the function *name* of *owner* raise KeyboardInterrupt."""
    function, calls = getattr(owner, name), []

    def breaks(*args, **kwargs):
        calls.append(None)
        if len(calls) == call:
            raise KeyboardInterrupt
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, breaks)


def goes_on(llm, straight, ids):
    """Check that the context holds the first tokens of *ids* and the next logits are exact."""
    n = llm.n_tokens
    assert llm.history == tuple(ids[:n])
    np.testing.assert_array_equal(llm.eval(ids[n : n + 3]), straight[n : n + 3])
    np.testing.assert_array_equal(llm.snapshot().tokens, ids[: n + 3])


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_rewind_that_is_broken_off(call, monkeypatch):
    ids = tiny.ids("qwen35", 100)
    with opened("qwen35") as llm:
        straight = llm.eval(ids[:90])
        llm.reset()
        llm.eval(ids[:80])
        interrupt(monkeypatch, Plan, ("replay", "run", "run")[call - 1], 1)
        with pytest.raises(KeyboardInterrupt):
            llm.rewind(65 if call == 1 else 20)
        monkeypatch.undo()

        goes_on(llm, straight, ids)


def test_mending_that_is_broken_off_again_loses_no_token(monkeypatch):
    ids = tiny.ids("qwen35", 100)
    with opened("qwen35") as llm:
        straight = llm.eval(ids[:90])
        llm.rewind(0)
        llm.eval(ids[:50])
        for _ in range(3):
            interrupt(monkeypatch, Plan, "run", 1)
            with pytest.raises(KeyboardInterrupt):
                llm.rewind(20) if llm.n_tokens == 50 else llm.eval(ids[20:30])
            monkeypatch.undo()
            assert llm.history == tuple(ids[:20])

        goes_on(llm, straight, ids)


@pytest.mark.parametrize("call", [1, 2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_a_restore_that_is_broken_off(model, call, monkeypatch):
    ids, others = tiny.ids(model, 60), tiny.ids(model, 100)[60:]
    with opened(model) as llm:
        straight = llm.eval(ids)
        llm.reset()
        llm.eval(others)
        snapshot = llm.snapshot()
        llm.reset()
        llm.eval(ids[:30])
        interrupt(monkeypatch, CpuSegment, "write_exact", call)
        with pytest.raises(KeyboardInterrupt):
            llm.restore(snapshot)
        monkeypatch.undo()

        goes_on(llm, straight, ids)


def test_a_context_shift_that_is_broken_off(monkeypatch):
    ids = tiny.ids("llama3", 60)
    with opened("llama3", n_ctx=40, context_shift=True) as llm, opened("llama3") as other:
        straight = other.eval(ids[:40])
        llm.eval(ids[:36])
        interrupt(monkeypatch, kv, "shift", 2)
        with pytest.raises(KeyboardInterrupt):
            llm.eval(ids[36:46])
        monkeypatch.undo()

        goes_on(llm, straight, ids)


@pytest.mark.parametrize("model", MODELS)
def test_a_reset_that_is_broken_off(model, monkeypatch):
    ids = tiny.ids(model, 60)
    with opened(model) as llm:
        straight = llm.eval(ids)
        interrupt(monkeypatch, SequenceStates, "close", 1)
        with pytest.raises(KeyboardInterrupt):
            llm.reset()
        monkeypatch.undo()

        goes_on(llm, straight, ids)


@pytest.mark.parametrize("call", range(1, 6))
def test_a_rewind_in_numpy_that_is_broken_off(call, monkeypatch):
    """The interrupt comes when only some of the states have been restored from the checkpoint."""
    ids = tiny.ids("qwen35", 30)
    with opened("qwen35", "numpy") as llm:
        straight = llm.eval(ids)
        llm.reset()
        for start in (0, 8, 16):
            llm.eval(ids[start : start + 8])
        interrupt(monkeypatch, ReferenceSegment, "write", call)
        with pytest.raises(KeyboardInterrupt):
            llm.rewind(16)
        monkeypatch.undo()
        n = llm.n_tokens

        assert abs(llm.eval(ids[n : n + 3]) - straight[n : n + 3]).max() < ROUNDING


@pytest.mark.parametrize("name", ["checkpoint", "restore", "write_exact"])
def test_a_device_that_fails_while_states_move_is_opened_again(name, monkeypatch):
    """It gets its part of the model again, and all tokens are evaluated again."""
    ids = tiny.ids("qwen35", 40)

    def fails(*args):
        raise DriverError("the device is gone", call="run", code=-1, remedy="look for it")

    with opened("qwen35", Partial()) as llm:
        straight = llm.eval(ids)
        llm.reset()
        for start in (0, 8, 16):
            llm.eval(ids[start : start + 8])
        snapshot = llm.snapshot()
        (part,) = llm.state._executor.parts
        monkeypatch.setattr(part.segment, name, fails)
        {"checkpoint": lambda: llm.eval(ids[24:30]), "restore": lambda: llm.rewind(16),
         "write_exact": lambda: llm.restore(snapshot)}[name]()  # fmt: skip
        n = llm.n_tokens

        assert llm.history == tuple(ids[:n])
        assert abs(llm.eval(ids[n : n + 3]) - straight[n : n + 3]).max() < ROUNDING
        assert any("opened again" in note and "is gone" in note for note in llm.report().notes)
        assert {part.actual for part in llm.model.executor.parts} == {"partial"}
