"""Test models with delta nets on the DSP: lost DSPs, snapshots, saved states, interruptions."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import npurt
from npurt.errors import StateFormatError
from npurt.hexagon.device.delta_memory import DeltaMemory
from npurt.llm.state import state_file
from tests.hexagon.delta_nets import (
    OPTIONS,
    kill_dsp_of,
)
from tests.hexagon.simulator import tell
from tests.llm import tiny
from tests.llm.reference import nmse


def in_parts(llm, then=lambda token: None):
    """Return the logits of 40 tokens: 20 in one run, then *then*, then the others one by one."""
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
        assert llm.state.reach(32) == 32
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
    """States are loaded, restored and cleared while the DSP has other states."""
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
    """A loaded state gives the same text and logits as the original state."""
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
    """The error is not larger than the usual difference between the two devices."""
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
            with pytest.raises(StateFormatError, match="holds NaN or infinity"):
                llm.load_state(tmp_path / "state")
        assert llm.history == (1, 2, 3)


def test_ctrl_c_in_the_middle_of_a_net_leaves_no_trace(undisturbed, monkeypatch):
    plain, calls = DeltaMemory.run, []

    def run(memory, rows):
        y = plain(memory, rows)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return y

    with opened("hexagon:sim") as llm:

        def interrupted(token):
            calls.clear()
            monkeypatch.setattr(DeltaMemory, "run", run)
            with pytest.raises(KeyboardInterrupt):
                llm.eval(tiny.ids("qwen35", 20))
            monkeypatch.undo()

        y = in_parts(llm, interrupted)

    np.testing.assert_array_equal(y, undisturbed)
