"""Tests of traces: events are nested, their times add up, and the file is always complete."""

import json
import time

import pytest

import npurt
from npurt.errors import SettingError
from npurt.graph import ops
from npurt.llm.spec.controller import Controller
from npurt.runtime.report.trace import Trace
from tests.llm import tiny
from tests.runtime.fake import FakeDevice
from tests.runtime.test_execute import Partial

IDS = list(range(2, 12))
OPTIONS = {"n_ctx": 64, "n_threads": 2, "progress": False, "verify": "off"}


def stop_at(product):
    """Return a `meddle` that raises KeyboardInterrupt in that product."""

    def meddle(index, y):
        if index == product:
            raise KeyboardInterrupt

    return meddle


def open_model(device="cpu", **options):
    return npurt.Llama(tiny.path("llama3", "q8_0"), device, **OPTIONS | options)


def inside(events):
    """Return each event with the event that contains it, or None; fail if two overlap."""
    held, found = [], []
    for event in events:
        while held and held[-1]["ts"] + held[-1]["dur"] <= event["ts"]:
            held.pop()
        end = event["ts"] + event["dur"]
        assert not held or end <= held[-1]["ts"] + held[-1]["dur"] + 1e-3  # a nanosecond
        found.append((event, held[-1] if held else None))
        held.append(event)
    return found


def test_events_lie_in_each_other_and_within_the_time_it_took(tmp_path):
    path = tmp_path / "trace.json"
    with open_model(FakeDevice()) as llm:
        start = time.perf_counter()
        with llm.trace(path):
            llm.eval(IDS)
            llm.eval([3])
        seconds = time.perf_counter() - start
        layers, report = llm.config.n_layers, llm.report()

    found = inside(json.loads(path.read_text()))

    runs = [event for event, parent in found if parent is None]
    assert [(run["name"], run["args"]) for run in runs] == [
        ("run", {"rows": 10, "position": 0, "sequences": 1}),
        ("run", {"rows": 1, "position": 10, "sequences": 1}),
    ]
    assert sum(run["dur"] for run in runs) <= 1e6 * seconds
    for run in runs:
        steps = [event for event, parent in found if parent is run]
        assert sum(step["dur"] for step in steps) <= run["dur"]
        assert [step["cat"] for step in steps if step["name"] == "ffn_down"] == ["fake"] * layers
    calls = [event for event, _ in found if event["name"] == "matmuls"]
    assert all(parent["cat"] == "fake" for event, parent in found if event in calls)
    there = sum(row.seconds for row in report.rows if row.actual == "fake")
    assert 1e-6 * sum(call["dur"] for call in calls) >= there > 0


def test_nothing_is_noted_before_and_after(tmp_path, monkeypatch):
    with open_model() as llm:
        llm.eval(IDS)
        for path in (tmp_path / "one.json", tmp_path / "two.json"):
            with llm.trace(path):
                llm.eval([3])
            llm.eval([4])

            events = json.loads(path.read_text())
            assert [event["name"] for event in events].count("run") == 1
            assert events[0]["ts"] == 0
        monkeypatch.delattr(Trace, "add")
        llm.eval([5])


def test_a_trace_that_is_interrupted_holds_what_ran(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("what was there")
    with path.open() as before:
        with (
            open_model(FakeDevice(meddle=stop_at(5))) as llm,
            pytest.raises(KeyboardInterrupt),
            llm.trace(path),
        ):
            llm.eval(IDS)
        assert before.read() == "what was there"  # a reader never sees a mixture of two files

    (run, *steps) = inside(json.loads(path.read_text()))
    assert run[0]["name"] == "run"
    assert len(steps) > 5
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]


def test_a_draft_is_in_the_trace_of_its_target(tmp_path):
    path = tmp_path / "trace.json"
    with open_model(draft=tiny.path("llama3", "q8_0")) as llm, llm.trace(path):
        llm.speculator.controller = Controller(4, fixed=True)
        llm.generate(IDS, max_tokens=24, temperature=0)

    names = {event["name"] for event, _ in inside(json.loads(path.read_text()))}
    assert {"run", "draft_run"} <= names


@pytest.mark.parametrize("failing", [(), (2,)], ids=["works", "fails"])
def test_segments_of_devices_that_run_graphs_are_in_the_trace(tmp_path, failing):
    """The host's run contains those of the other device, and a failed run before its repetition."""
    path = tmp_path / "trace.json"
    with open_model(Partial((ops.Attention,), failing=failing)) as llm:
        host, *wanted = [(part.graph.name, part.actual) for part in llm.model.executor.parts]
        assert host[1] == "cpu"
        assert [device for _, device in wanted] == ["partial"] * 4
        wanted[1:1] = [wanted[1]] * len(failing)
        with llm.trace(path):
            llm.eval(IDS)
        llm.eval([3])

    found = inside(json.loads(path.read_text()))
    (whole, *steps) = found
    assert (whole[0]["name"], whole[0]["cat"]) == host
    assert whole[1] is None
    assert [(event["name"], event["cat"]) for event, _ in steps] == wanted
    for event, parent in steps:
        assert parent is whole[0]
        assert event["args"] == {"rows": len(IDS)}


@pytest.mark.parametrize("name", ["", "no/such/folder/trace.json"])
def test_a_file_that_cannot_be_written_is_an_error_before_anything_runs(tmp_path, name):
    with open_model() as llm:
        with pytest.raises(SettingError, match="cannot write a trace") as caught, \
                llm.trace(tmp_path / name):  # fmt: skip
            llm.eval(IDS)
        assert llm.n_tokens == 0
    assert caught.value.remedy
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_at_the_end_leaves_nothing(tmp_path):
    path = tmp_path / "trace.json"
    with open_model() as llm, pytest.raises(SettingError, match="cannot write"), llm.trace(path):
        path.mkdir()
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]


def test_an_error_of_somebody_elses_file_stays_what_it_is(tmp_path):
    with open_model() as llm, pytest.raises(BrokenPipeError), llm.trace(tmp_path / "trace.json"):
        raise BrokenPipeError
