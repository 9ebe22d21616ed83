"""Test inputs that the segments of all devices refuse; see also `npurt.testing`."""

import numpy as np
import pytest

from npurt.cpu.device import CpuDevice
from npurt.cpu.lowering.part import PartProgram
from npurt.device.segment import Capacity, Limits, split
from npurt.errors import LayoutError, SettingError
from npurt.graph import ops
from npurt.graph.rows import Rows
from npurt.graph.tensor import Kind
from npurt.llm.arch.reading import describe
from npurt.llm.arch.weights import FileWeights
from npurt.llm.file.gguf import GGUF
from npurt.reference.device import ReferenceDevice
from tests.llm import tiny


def test_an_unknown_element_type_of_keys_and_values_names_the_choices():
    with pytest.raises(SettingError, match=r"kv_dtype 'q8_0' .*\n.*use 'f16' or 'f32'"):
        Limits(rows=1, positions=1, kv_dtype="q8_0")


@pytest.mark.parametrize("name", ["rows", "positions", "sequences", "kv_bytes"])
def test_limits_below_1_are_refused(name):
    with pytest.raises(SettingError, match=f"0 {name}"):
        Limits(**{"rows": 1, "positions": 1, "sequences": 1, name: 0})


@pytest.mark.parametrize(
    ("name", "arrays"),
    [
        ("sequences", (np.zeros(2, int), np.arange(3), np.ones(3, bool))),
        ("sequences", (np.zeros(3), np.arange(3), np.ones(3, bool))),
        ("positions", (np.zeros(3, int), np.arange(3.0), np.ones(3, bool))),
        ("sequences", (np.zeros((3, 1), int), np.arange(3), np.ones(3, bool))),
        ("wanted", (np.zeros(3, int), np.arange(3), np.ones(2, bool))),
        ("wanted", (np.zeros(3, int), np.arange(3), np.arange(3))),
    ],
)
def test_rows_of_other_shapes_or_types_are_refused(name, arrays):
    with pytest.raises(LayoutError, match=f"^{name} of 3 rows"):
        Rows(*arrays)


@pytest.mark.parametrize("length", [0, 1, 64, 65, 128])
def test_a_length_takes_pages_for_all_its_positions(length):
    pages = Capacity(page=64, free=2, total=3).pages(length)

    assert 64 * pages >= length > 64 * (pages - 1)


@pytest.mark.parametrize("device", [ReferenceDevice, CpuDevice])
@pytest.mark.parametrize("model", [("qwen35",), ("lfm2", "bf16"), ("gpt-oss", "bf16")])
def test_recurrent_states_are_forked_as_they_are(device, model):
    """A shorter fork can be evaluated after a checkpoint of its length is restored."""
    ids = np.array(tiny.ids(model[0], 16))
    with GGUF(tiny.path(*model)) as file, device() as opened:
        graph = describe(file).graph(64)
        limits = Limits(rows=16, positions=32, sequences=2)
        segment = opened.compile(graph.graph, FileWeights(file, graph), limits)

        def run(start, end, sequence=0):
            rows = Rows.of(end - start, start, sequence=sequence)
            return segment.run({"tokens": ids[start:end]}, rows)["logits"]

        run(0, 6)
        checkpoint = segment.checkpoint(0)
        six = run(6, 10)
        segment.fork(0, 1, 10)
        ten = run(10, 16)
        assert np.array_equal(run(10, 16, 1), ten)
        segment.fork(0, 1, 6)
        segment.restore(1, checkpoint)
        assert np.array_equal(run(6, 10, 1), six)
        assert np.array_equal(run(10, 16, 1), ten)


@pytest.mark.parametrize("device", [ReferenceDevice, CpuDevice])
@pytest.mark.parametrize("wrong", [-1, 8])
def test_experts_that_do_not_exist_are_refused(device, wrong):
    """Another device may have computed the wrong choice."""
    with GGUF(tiny.path("qwen3moe")) as file, device() as opened:
        graph = describe(file).graph(64)
        parts = split(graph.graph, lambda op: isinstance(op, ops.ExpertMatMul))
        part = next(part for owner, part in parts if owner)
        (products, *_) = part.ops
        assert products.weight.shape[0].size == 8
        segment = opened.compile(part, FileWeights(file, graph), Limits(rows=4, positions=4))
        experts = np.zeros((2, products.experts.columns), np.int32)
        values = {
            tensor.name: np.zeros((2, *(dim.size for dim in tensor.shape[1:])), np.float32)
            for op in part.ops
            for tensor in op.reads
            if tensor.name in part.given
        } | {products.experts.name: experts}
        segment.run(values, Rows.of(2))
        experts[1, 0] = wrong
        with pytest.raises(LayoutError, match=f"{wrong} in blk.0.*, which has 8"):
            segment.run(values, Rows.of(2))


def test_a_run_that_one_sequence_refuses_changes_no_other():
    """A delta net cannot roll back alone, because its state belongs to one position."""
    with GGUF(tiny.path("qwen35")) as file, CpuDevice() as device:
        graph = describe(file).graph(64)
        limits = Limits(rows=8, positions=16, sequences=2)
        segment = device.compile(graph.graph, FileWeights(file, graph), limits)
        flags = np.ones(6, np.bool_)
        both = Rows(np.repeat([0, 1], 3), np.tile(np.arange(3), 2), flags)
        segment.run({"tokens": np.arange(6)}, both)
        states = graph.graph.tensors(Kind.STATE)
        kept = {(t.name, i): segment.read(t, i) for t in states for i in (0, 1)}
        back = Rows(np.repeat([0, 1], 3), np.r_[3:6, 1:4], flags)

        with pytest.raises(LayoutError, match="has 3 positions, not 1"):
            segment.run({"tokens": np.arange(6)}, back)
        with pytest.raises(LayoutError, match="3 sequences do not fit"):
            segment.run({"tokens": np.arange(1)}, Rows.of(1, 1, sequence=2))
        for t in states:
            for i in (0, 1):
                assert np.array_equal(segment.read(t, i), kept[t.name, i]), (t, i)


def interrupted(monkeypatch, sequence):
    """Interrupt the run of *sequence* by Ctrl-C."""
    run = PartProgram.run

    def stop(self, values, rows, spans, outs):
        if sequence in rows.sequences:
            raise KeyboardInterrupt
        return run(self, values, rows, spans, outs)

    monkeypatch.setattr(PartProgram, "run", stop)


@pytest.mark.parametrize("model", [("qwen35",), ("lfm2", "bf16"), ("llama3",)])
def test_sequences_of_a_run_that_broke_off_are_lost_and_can_begin_again(model, monkeypatch):
    with GGUF(tiny.path(*model)) as file, CpuDevice() as device:
        graph = describe(file).graph(64)
        limits = Limits(rows=8, positions=16, sequences=2)
        segment = device.compile(graph.graph, FileWeights(file, graph), limits)
        tokens = {"tokens": np.arange(6)}
        both = Rows(np.repeat([0, 5], 3), np.tile(np.arange(3), 2), np.ones(6, np.bool_))
        first = segment.run(tokens, both)
        with monkeypatch.context() as patch:
            interrupted(patch, 5)
            with pytest.raises(KeyboardInterrupt):
                segment.run(tokens, Rows(both.sequences, both.positions + 3, both.wanted))
        with pytest.raises(LayoutError, match="has 0 positions, not 3"):
            segment.run(tokens, Rows(both.sequences, both.positions + 3, both.wanted))
        again = segment.run(tokens, both)

        assert all(np.array_equal(again[name], values) for name, values in first.items())


def test_a_sequence_whose_run_broke_off_goes_on_from_where_it_began(monkeypatch):
    """The pages of later positions may have been freed."""
    with GGUF(tiny.path("llama3")) as file, CpuDevice() as device:
        graph = describe(file).graph(200)
        segment = device.compile(graph.graph, FileWeights(file, graph), Limits(80, 200))
        tokens = np.arange(160) % 100
        segment.run({"tokens": tokens[:80]}, Rows.of(80))
        expected = segment.run({"tokens": tokens[80:]}, Rows.of(80, 80))["logits"]
        with monkeypatch.context() as patch:
            interrupted(patch, 0)
            with pytest.raises(KeyboardInterrupt):
                segment.run({"tokens": tokens[:3]}, Rows.of(3, 10))
        with pytest.raises(LayoutError, match="has 10 positions, not 80"):
            segment.run({"tokens": tokens[80:]}, Rows.of(80, 80))
        state = graph.graph.tensors(Kind.STATE)[0]
        assert len(segment.read(state, 0)) == 10
        segment.run({"tokens": tokens[10:80]}, Rows.of(70, 10))

        made = segment.run({"tokens": tokens[80:]}, Rows.of(80, 80))["logits"]
        assert np.array_equal(made, expected)


def test_sequences_whose_first_run_broke_off_take_no_memory(monkeypatch):
    with GGUF(tiny.path("llama3")) as file, CpuDevice() as device:
        graph = describe(file).graph(64)
        limits = Limits(rows=8, positions=16, sequences=2)
        segment = device.compile(graph.graph, FileWeights(file, graph), limits)
        for sequence in range(4):
            with monkeypatch.context() as patch:
                interrupted(patch, sequence)
                with pytest.raises(KeyboardInterrupt):
                    segment.run({"tokens": np.arange(2)}, Rows.of(2, sequence=sequence))

        assert not segment._sequences
        assert segment.capacity().free == segment.capacity().total
