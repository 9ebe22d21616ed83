"""Tests of the executor: partitions, fallback, states and the numpy device, against float64."""

import errno
from dataclasses import replace

import numpy as np
import pytest

from npurt.device.segment import Fit, Limits
from npurt.errors import DeviceFull, DeviceNotFound, DriverError, NotOffloaded, SettingError
from npurt.graph import ops
from npurt.graph.cost import cost
from npurt.graph.rows import Rows
from npurt.graph.tensor import Kind
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


def test_the_host_calls_each_part_with_what_crosses_between_them():
    made, _ = executor("llama3", Partial((ops.Attention,)))

    host, *others = made.parts
    calls = {op.name: op for op in host.graph.ops if isinstance(op, ops.Foreign)}
    assert list(calls) == [part.graph.name for part in others]
    for part in others:
        call = calls[part.graph.name]
        assert {t.name for t in call.inputs} == part.graph.given
        assert {t.name for t in call.outs} == part.graph.wanted | (
            {"logits"} if part is others[-1] else set()
        )
    assert {part.actual for part in others} == {"partial"}
    assert host.actual == "numpy"


def test_counters_are_those_of_the_products():
    made, ledger = executor("llama3", ReferenceDevice())

    run(made, [1, 2, 3])
    run(made, [4], 3)

    (row,) = [row for row in ledger.report().rows if row.tensor == "blk.0.ffn_down"]
    assert (row.calls, row.rows, row.macs) == (2, 4, 4 * row.shape[0] * row.shape[1])
    assert ledger.report().line().startswith("offload: none, 100.0 % of MACs on numpy")


# --- Failures -------------------------------------------------------------------------------------


def evaluated(made, ids):
    """Evaluate ids in runs of three tokens, again from the first after each loss; count losses."""
    found, start, again = [], 0, 0
    while start < len(ids):
        y = run(made, ids[start : start + 3], start)
        if y is None:
            made.forget(0)
            found, start, again = [], 0, again + 1
        else:
            found.append(y)
            start += 3
    return np.concatenate(found), again


@pytest.mark.parametrize("failing", [(1,), (2,), (3,), (2, 3)])
def test_a_device_that_fails_is_opened_again_and_evaluates_the_tokens_again(failing):
    ids = tiny.ids("llama3", 9)
    made, ledger = executor("llama3", Partial(failing=failing))

    y, again = evaluated(made, ids)

    assert again == made.losses == len(failing)
    assert nmse(y, logits(tiny.path("llama3", "q8_0"), ids)) < FLOAT32
    notes = ledger.report().notes
    assert notes == ("partial was opened again and its weights uploaded: it died",) * len(failing)
    rows = ledger.report().rows
    assert {row.actual for row in rows} == {"partial"}
    (row,) = [row for row in rows if row.tensor == "blk.0.ffn_down" and row.rows >= len(ids)]
    assert row.offloaded


def test_a_device_that_fails_too_often_is_left():
    ids = tiny.ids("llama3", 9)
    made, ledger = executor("llama3", Partial(failing=(1, 2, 4)))

    y, again = evaluated(made, ids)

    assert again == 3
    assert nmse(y, logits(tiny.path("llama3", "q8_0"), ids)) < FLOAT32
    assert "numpy takes over from partial: it died" in ledger.report().notes
    assert [part.actual for part in made.parts] == ["numpy"]
    assert {row.actual for row in ledger.report().rows} == {"partial", "numpy"}


def test_a_device_that_cannot_be_opened_again_is_left():
    class Gone(Partial):
        def reopen(self):
            raise DeviceNotFound("it is gone", remedy="plug it in")

    ids = tiny.ids("llama3", 9)
    made, ledger = executor("llama3", Gone(failing=(2,)))

    y, again = evaluated(made, ids)

    assert again == 1
    assert nmse(y, logits(tiny.path("llama3", "q8_0"), ids)) < FLOAT32
    notes = ledger.report().notes
    assert "partial cannot be opened again: it is gone" in notes
    assert "numpy takes over from partial: it died" in notes


def test_a_lost_device_gets_all_its_parts_again():
    """A loss takes the memory of all parts of the device, not only that of the failed one."""
    device = Partial((ops.Attention, ops.Rope), failing=(2,))
    made, _ = executor("llama3", device)
    before = [part.segment for part in made.parts[1:]]
    ids = tiny.ids("llama3", 5)

    y = run(made, ids)  # products have no states, so the run goes on

    assert nmse(y, logits(tiny.path("llama3", "q8_0"), ids)) < FLOAT32
    assert not {id(part.segment) for part in made.parts[1:]} & set(map(id, before))
    assert [part.actual for part in made.parts] == ["numpy", *["partial"] * len(before)]


def test_the_arithmetic_of_a_lost_device_stays_if_the_host_has_it():
    class Kept(Partial):
        def compile_on_host(self, part, weights, limits):
            return ReferenceSegment(
                part, weights, limits, {ops.Softcap: lambda op, run: (run[op.x],)}
            )

    made, _ = executor("llama3", Kept(failing=(1, 2, 3)))
    ids = tiny.ids("llama3", 9)

    evaluated(made, ids)

    (part,) = made.parts
    assert part.actual == "numpy"
    assert ops.Softcap in part.segment._interpreter._kernels
    assert part.segment._interpreter._kernels[ops.Softcap].__qualname__.startswith("test_the_")


def test_what_has_no_room_runs_elsewhere():
    made, ledger = executor("llama3", Partial((ops.Attention,), capacity=1))
    ids = tiny.ids("llama3", 5)

    assert nmse(run(made, ids), logits(tiny.path("llama3", "q8_0"), ids)) < FLOAT32
    assert [part.actual for part in made.parts].count("partial") == 1
    assert any("has no space for" in note for note in ledger.report().notes)


# --- Memory ---------------------------------------------------------------------------------------


class Small(Partial):
    """A device with memory for *nbytes* bytes of weights, which tells the sizes of parts.

    *runs_out*: The runs in which it has no memory for its work.
    """

    def __init__(self, nbytes, runs_out=(), worth=None):
        super().__init__()
        self.nbytes, self.runs_out, self.worth = nbytes, runs_out, worth or {}

    def fit(self, part, weights, limits):
        return Fit(
            sum(cost(op, 1).weight_bytes for op in part.ops), self.worth.get(part.ops[-1].name, 0)
        )

    def compile(self, part, weights, limits):
        need = self.fit(part, weights, limits).nbytes
        if need > self.nbytes:
            raise DeviceFull("full", remedy="buy more", call="alloc", code=errno.ENOMEM)
        self.nbytes -= need
        device = self

        class Segment(ReferenceSegment):
            def run(self, values, rows):
                device.runs += 1
                if device.runs in device.runs_out:
                    raise DeviceFull("no heap", remedy="buy more", call="run", code=errno.ENOMEM)
                return super().run(values, rows)

            def close(self):
                device.nbytes += need * (not self._guard.closed)
                super().close()

        return Segment(part, weights, limits)


def bytes_of(model):
    with GGUF(tiny.path(model, "q8_0")) as file:
        graph = describe(file).graph(64).graph
    return sum(cost(op, 1).weight_bytes for op in graph.ops), graph


@pytest.mark.parametrize("model", MODELS)
def test_one_byte_too_few_costs_one_layer(model):
    need, graph = bytes_of(model)
    made, ledger = executor(model, Small(need - 1))
    ids = tiny.ids(model, 9)

    assert nmse(evaluated(made, ids)[0], logits(tiny.path(model, "q8_0"), ids)) < FLOAT32
    there = [part for part in made.parts if part.actual == "partial"]
    left = [part for part in made.parts if part.actual == "numpy"]
    assert len(left) == 1
    assert sum(len(part.graph.ops) for part in there) + len(left[0].graph.ops) == len(graph.ops)
    assert left[0].reason == "full"
    (note,) = ledger.report().notes
    assert "has no space for" in note


def test_the_layers_that_save_the_most_time_are_placed_first():
    need, graph = bytes_of("llama3")
    last = [op.name for op in graph.ops if op.name.startswith("blk.1.")][-1]
    made, _ = executor("llama3", Small(need // 2, worth={last: 1.0}))

    there = {op.name for p in made.parts if p.actual == "partial" for op in p.graph.ops}
    assert last in there
    assert not any(name.startswith("blk.0.") for name in there)


def test_a_device_that_runs_out_of_memory_while_it_works_loses_one_layer():
    need, graph = bytes_of("llama3")
    made, ledger = executor("llama3", Small(need, runs_out=(3,)))
    ids = tiny.ids("llama3", 9)

    y, again = evaluated(made, ids)

    assert again == 1
    assert nmse(y, logits(tiny.path("llama3", "q8_0"), ids)) < FLOAT32
    there = [len(part.graph.ops) for part in made.parts if part.actual == "partial"]
    assert 0 < len(graph.ops) - sum(there) < len(graph.ops) // 2
    assert any("ran out of memory while it worked" in note for note in ledger.report().notes)


def test_parts_divide_the_bytes_of_keys_and_values():
    """The sum over all parts is the budget of the model, whatever the partition."""
    kv_bytes = 1 << 20
    limits = replace(LIMITS, kv_bytes=kv_bytes)
    asked = []

    class Asked(Small):
        def compile(self, part, weights, limits):
            asked.append((limits.kv_bytes, len(part.tensors(Kind.STATE))))
            return super().compile(part, weights, limits)

    need, _ = bytes_of("llama3")
    executor("llama3", Asked(need - 1), limits=limits)

    whole, *layers = [nbytes for nbytes, states in asked if states]
    assert whole == kv_bytes
    assert kv_bytes - len(layers) < sum(layers) <= kv_bytes
    assert len(layers) > 1


def test_strict_mode_refuses_what_the_device_refuses():
    with pytest.raises(NotOffloaded, match=r"partial cannot run blk.0.attention: no Attention"):
        executor("llama3", Partial((ops.Attention,)), strict=True)


def test_strict_mode_ends_when_the_device_is_lost_for_good():
    made, _ = executor("llama3", Partial(failing=(1, 2, 3)), strict=True)
    assert run(made, [1, 2]) is None
    assert run(made, [1, 2]) is None

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
