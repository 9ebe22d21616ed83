"""Test graphs on simulated NPUs, which compile products and delta nets; the CPU runs the rest."""

from dataclasses import replace

import numpy as np
import pytest

import npurt
from npurt.cpu.device import CpuDevice
from npurt.device.products import ProductDevice
from npurt.device.segment import Limits, split
from npurt.device.verify import Mode, Sampler
from npurt.graph import ops
from npurt.graph.rows import Rows
from npurt.graph.tensor import Kind
from npurt.llm.arch.reading import describe
from npurt.llm.arch.weights import FileWeights
from npurt.llm.file.gguf import GGUF
from npurt.runtime.execute.executor import Executor
from npurt.runtime.report.ledger import Ledger
from npurt.testing import DeviceSuite
from tests.graph.models import logits
from tests.llm import tiny
from tests.llm.reference import nmse
from tests.runtime.fake import FakeDevice
from tests.runtime.test_execute import FLOAT32
from tests.runtime.test_parts_elsewhere import DeltaDevice

LIMITS = Limits(rows=16, positions=64, sequences=2, kv_dtype="f32")
OF_NPU = 0.02  # nmse of logits of tiny models with int8 products; measured: 4e-4 to 6e-3


class TestHexagon(DeviceSuite):
    tolerance = OF_NPU

    def open(self):
        return npurt.open_device("hexagon:sim")


class TestRk(DeviceSuite):
    tolerance = OF_NPU

    def open(self):
        return npurt.open_device("rknpu:sim")


class Fake(ProductDevice, FakeDevice):
    """Compiles products."""


class FakeNets(ProductDevice, DeltaDevice):
    """Compiles products and delta nets."""


def evaluated(device, name, ids, kind="q8_0", *, strict=False):
    """Return logits, parts and the report of a model on *device* and the CPU, all verified."""
    ledger = Ledger("test", strict)
    with GGUF(tiny.path(name, kind)) as file, CpuDevice(2) as cpu:
        graph = describe(file).graph(64)
        made = Executor(
            graph.graph, device, cpu, FileWeights(file, graph), LIMITS, ledger,
            checks=Sampler(Mode.ALWAYS),
        )  # fmt: skip

        def run(start, end):
            inputs, rows = {"tokens": np.array(ids[start:end])}, Rows.of(end - start, start)
            return made.run(inputs, rows)["logits"]

        y = [run(0, 7), *(run(i, i + 1) for i in range(7, len(ids)))]
        report = ledger.report()
        made.close()
    return np.concatenate(y), made.parts, report


@pytest.mark.parametrize("device", ["hexagon:sim", "rknpu:sim"])
@pytest.mark.parametrize("name", ["llama3", "qwen35", "qwen3moe"])
def test_an_npu_has_the_products_of_a_model(device, name):
    ids = tiny.ids(name, 12)
    with npurt.open_device(device) as opened:
        y, parts, report = evaluated(opened, name, ids)

    assert nmse(y, logits(tiny.path(name, "q8_0"), ids)) < OF_NPU
    there = {type(op) for part in parts if part.actual == device for op in part.graph.ops}
    nets = {ops.GatedDeltaNet} if (device, name) == ("hexagon:sim", "qwen35") else set()
    assert there == {ops.MatMul} | nets
    checked = [row for row in report.rows if row.actual == device or row.macs]
    assert all((row.verified, row.failed) == (row.calls, 0) for row in checked)
    assert any(row.macs for row in checked if row.actual == device)


def test_products_that_do_not_depend_on_each_other_are_one_part():
    """The rotations follow all three products of a layer's input, in the attention's part."""
    with GGUF(tiny.path()) as file, Fake() as device:
        graph = describe(file).graph(64).graph
        parts = split(graph, lambda op: device.why_not_op(op, LIMITS) is None)

    kinds = [[type(op).__name__ for op in part.ops] for _, part in parts[:4]]
    assert kinds == [
        ["Embedding", "RMSNorm"], ["MatMul"] * 3, ["Rope", "Rope", "Attention"], ["MatMul"],
    ]  # fmt: skip
    assert sorted(op.name for _, part in parts for op in part.ops) == sorted(
        op.name for op in graph.ops
    )
    made = set()
    for _, part in parts:
        assert part.given - {"tokens"} <= made
        made |= part.wanted


def test_a_wrong_product_is_computed_again_by_the_cpu():
    def lie(index, y):
        if index == 30:
            y[0, 3] += 1

    ids = tiny.ids("llama3", 12)
    with Fake() as honest:
        expected, _, _ = evaluated(honest, "llama3", ids, "f32")
    with Fake(meddle=lie) as device:
        y, parts, report = evaluated(device, "llama3", ids, "f32")

    np.testing.assert_array_equal(y, expected)
    (moved,) = [part for part in parts if "computed a wrong product" in part.reason]
    assert moved.actual == "cpu"
    assert sum(row.failed for row in report.rows) == 1
    assert "cpu takes over from fake: fake computed a wrong product with" in str(report)


def test_a_wrong_product_ends_strict_mode():
    with (
        Fake() as device,
        pytest.raises(npurt.NotOffloaded, match="runs products and delta nets only"),
    ):
        evaluated(device, "llama3", [1, 2, 3], strict=True)


def test_delta_nets_have_states_of_their_own():
    """Each sequence has states, which can be restored, read and written as float32."""
    ids = tiny.ids("qwen35", 12)
    with FakeNets() as device, GGUF(tiny.path("qwen35", "f32")) as file:
        y, parts, _ = evaluated(device, "qwen35", ids, "f32")
        assert device.nets == 6 * sum(
            isinstance(op, ops.GatedDeltaNet) for part in parts for op in part.graph.ops
        )
        assert nmse(y, logits(tiny.path("qwen35", "f32"), ids)) < FLOAT32

        graph = describe(file).graph(64)
        parts = split(graph.graph, lambda op: isinstance(op, ops.GatedDeltaNet))
        part = next(part for owner, part in parts if owner)
        segment = device.compile(part, FileWeights(file, graph), LIMITS)
        (state,) = part.tensors(Kind.STATE)
        rng = np.random.default_rng(0)
        values = {
            t.name: rng.standard_normal((4, t.columns), dtype=np.float32) / 8
            for op in part.ops
            for t in op.reads
        }
        rows = Rows.of(4)
        first = segment.run(values, rows)
        kept, read = segment.checkpoint(0), segment.read(state, 0)
        then = segment.run(values, rows)
        (name,) = then
        assert not np.array_equal(first[name], then[name])
        segment.restore(0, kept)
        np.testing.assert_array_equal(segment.run(values, rows)[name], then[name])
        segment.forget(0)
        segment.restore(0, kept)
        np.testing.assert_array_equal(segment.run(values, rows)[name], then[name])
        segment.write(state, 3, read)
        rows = replace(rows, sequences=np.full(len(rows), 3))
        np.testing.assert_array_equal(segment.run(values, rows)[name], then[name])
        segment.forget(3)
        np.testing.assert_array_equal(segment.run(values, rows)[name], first[name])
