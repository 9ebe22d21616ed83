"""Tests of the executor: partitions, fallback, states and the numpy device, against float64."""

import errno

import numpy as np
import pytest

from npurt.device.segment import Limits
from npurt.errors import DeviceFull, DriverError, NotOffloaded, SettingError
from npurt.graph import ops
from npurt.graph.rows import Rows
from npurt.llm.arch.reading import describe
from npurt.llm.arch.weights import FileWeights
from npurt.llm.file.gguf import GGUF
from npurt.reference.device import ReferenceDevice
from npurt.reference.segment import ReferenceSegment
from npurt.runtime.execute.executor import Executor
from npurt.runtime.report.ledger import Ledger
from tests.graph.models import logits
from tests.llm import tiny
from tests.llm.reference import nmse
from tests.runtime.fake import FakeDevice

MODELS = ("llama3", "qwen3moe", "qwen35")
FLOAT32 = (128 * 2.0**-24) ** 2  # nmse; float32 arithmetic is off by 20 to 83 half ulps here
LIMITS = Limits(rows=512, positions=64, kv_dtype="f32")


class FailingSegment(ReferenceSegment):
    """A segment that raises an error in the runs that its device lists."""

    device = None

    def run(self, values, rows):
        self.device.runs += 1
        if self.device.runs in self.device.failing:
            raise DriverError("it died", remedy="none", call="run", code=errno.EIO)
        return super().run(values, rows)


class Partial(ReferenceDevice):
    """A device that refuses some ops, has memory for *room* parts, and fails in some runs."""

    def __init__(self, refuses=(), capacity=99, failing=()):
        super().__init__()
        self.caps = type(self.caps)("partial", "", True)
        self.refuses, self.capacity, self.failing, self.runs = refuses, capacity, failing, 0

    def why_not_op(self, op, limits):
        return f"no {type(op).__name__}" if isinstance(op, self.refuses) else None

    def compile(self, part, weights, limits):
        if self.capacity == 0:
            raise DeviceFull("full", remedy="buy more", call="alloc", code=errno.ENOMEM)
        self.capacity -= 1
        segment = FailingSegment(part, weights, limits)
        segment.device = self
        return segment


def executor(model, device, kind="q8_0", *, strict=False, limits=LIMITS):
    file = GGUF(tiny.path(model, kind))
    description = describe(file)
    graph = description.graph(64)
    ledger = Ledger("test", strict)
    made = Executor(
        graph.graph, device, ReferenceDevice(), FileWeights(file, graph), limits, ledger
    )
    return made, ledger


def run(made, ids, start=0):
    made = made.run({"tokens": np.asarray(ids)}, Rows.of(len(ids), start))
    return None if made is None else made["logits"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "refuses", [(), (ops.RMSNorm,), (ops.Attention, ops.GatedDeltaNet), (ops.MatMul,)]
)
def test_any_partition_gives_the_logits_of_float64(model, refuses):
    ids = tiny.ids(model, 20)
    made, ledger = executor(model, Partial(refuses))

    first = run(made, ids[:7])
    y = np.concatenate([first, *(run(made, ids[i : i + 1], i) for i in range(7, 20))])

    whole, _ = executor(model, ReferenceDevice())
    assert np.array_equal(first, run(whole, ids[:7]))
    assert nmse(y, logits(tiny.path(model, "q8_0"), ids)) < FLOAT32
    rows = ledger.report().rows
    assert {row.actual for row in rows} == ({"partial", "numpy"} if refuses else {"partial"})
    assert all((row.reason == "") == (row.actual == "partial") for row in rows)
    assert (len(made.parts) > 1) == bool(refuses)


def test_parts_are_given_and_wanted_what_crosses_between_them():
    made, _ = executor("llama3", Partial((ops.Attention,)))

    given = set()
    for part in made.parts:
        assert part.graph.given <= given | {"tokens"}
        given |= part.graph.wanted
    assert "logits" in given


def test_counters_are_those_of_the_products():
    made, ledger = executor("llama3", ReferenceDevice())

    run(made, [1, 2, 3])
    run(made, [4], 3)

    (row,) = [row for row in ledger.report().rows if row.tensor == "blk.0.ffn_down"]
    assert (row.calls, row.rows, row.macs) == (2, 4, 4 * row.shape[0] * row.shape[1])
    assert ledger.report().line().startswith("offload: none, 100.0 % of MACs on numpy")


# --- Failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_device_that_fails_is_left_and_the_tokens_are_evaluated_again(failing):
    ids = tiny.ids("llama3", 9)
    made, ledger = executor("llama3", Partial(failing=(failing,)))

    found, start, again = [], 0, 0
    while start < len(ids):
        y = run(made, ids[start : start + 3], start)
        if y is None:
            made.forget(0)
            found, start, again = [], 0, again + 1
        else:
            found.append(y)
            start += 3

    assert again == 1
    assert nmse(np.concatenate(found), logits(tiny.path("llama3", "q8_0"), ids)) < FLOAT32
    assert "numpy takes over from partial: it died" in ledger.report().notes
    assert {row.actual for row in ledger.report().rows} <= {"partial", "numpy"}


def test_a_part_without_states_goes_on_at_once():
    device = Partial((ops.Attention, ops.Rope), failing=(2,))
    made, ledger = executor("llama3", device)
    ids = tiny.ids("llama3", 5)

    y = run(made, ids)

    assert nmse(y, logits(tiny.path("llama3", "q8_0"), ids)) < FLOAT32
    assert len(ledger.report().notes) == 1


def test_what_has_no_room_runs_elsewhere():
    made, ledger = executor("llama3", Partial((ops.Attention,), capacity=1))
    ids = tiny.ids("llama3", 5)

    assert nmse(run(made, ids), logits(tiny.path("llama3", "q8_0"), ids)) < FLOAT32
    assert [part.actual for part in made.parts].count("partial") == 1
    assert any("has no space for" in note for note in ledger.report().notes)


def test_strict_mode_refuses_what_the_device_refuses():
    with pytest.raises(NotOffloaded, match=r"partial cannot run blk.0.attention: no Attention"):
        executor("llama3", Partial((ops.Attention,)), strict=True)


def test_strict_mode_ends_when_the_device_fails():
    made, _ = executor("llama3", Partial(failing=(1,)), strict=True)

    with pytest.raises(NotOffloaded, match="it died"):
        run(made, [1, 2])


def test_a_device_that_runs_no_graphs_is_refused():
    with pytest.raises(SettingError, match="fake does not run graphs"):
        executor("llama3", FakeDevice())


# --- States ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_states_can_be_read_and_written(model):
    ids = tiny.ids(model, 12)
    one, _ = executor(model, Partial((ops.RMSNorm,)))
    two, _ = executor(model, ReferenceDevice())
    run(one, ids[:8])

    two.write(0, one.read(0))

    assert np.array_equal(run(one, ids[8:], 8), run(two, ids[8:], 8))


@pytest.mark.parametrize("model", MODELS)
def test_a_checkpoint_takes_tokens_back(model):
    ids = tiny.ids(model, 12)
    made, _ = executor(model, ReferenceDevice())
    run(made, ids[:8])
    made.begin(0, 8)
    after = run(made, ids[8:], 8)
    run(made, [3, 2, 1], 12)

    assert made.reach(0, 9) == (8 if model == "qwen35" else 9)
    made.rewind(0, 8)

    assert np.array_equal(run(made, ids[8:], 8), after)


def open_partial(name):
    """Open a device; tests refer to this function by an entry point."""
    device = Partial()
    device.caps = type(device.caps)(name, "of another package", True)
    return device
