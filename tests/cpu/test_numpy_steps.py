"""Tests of numpy steps between programs: the result of a row does not depend on other rows."""

import numpy as np
import pytest

import npurt
from npurt.cpu.device import CpuDevice
from npurt.cpu.lowering.outside_steps import NumpyStep
from npurt.device.segment import Limits
from npurt.graph.builder import Builder
from npurt.graph.ops import Gating
from npurt.graph.rows import Rows
from npurt.graph.tensor import Dim
from npurt.reference.device import ReferenceDevice
from npurt.testing import RandomWeights
from tests.llm import tiny, variants

LIMITS = Limits(rows=64, positions=64, sequences=2, kv_dtype="f32")
IDS = np.arange(40)


def product_of_columns(b, h, d):
    """Add a product whose input is the first columns of a wider buffer."""
    first, second = (
        b.matmul(name, h, b.constant(f"{name}.weight", Dim("N", 100), d), role="both")
        for name in ("first", "second")
    )
    up = b.matmul("up", first, b.constant("up.weight", Dim("M", 100), Dim("N", 100)), role="up")
    return b.add("total", up, second)


def attention_of_other_inputs(b, h, d):
    """Add an attention whose queries and keys are not adjacent in memory."""
    q, k, v = (
        b.matmul(f"x.{n}", h, b.constant(f"{n}.weight", Dim("N", 64), d), role=n) for n in "qkv"
    )
    q = b.scale("scaled", q, 0.5)
    return b.attention("attention", q, k, v, heads=2, kv_heads=2, scale=0.2)


def experts_alone(b, h, d):
    """Add experts that a sigmoid routes."""
    scores = b.matmul("scores", h, b.constant("router", Dim("E", 4), d), role="router")
    experts, weights = b.route("route", scores, 2, Gating.SIGMOID, normalise=True)
    stack = b.constant("stack", Dim("E", 4), Dim("F", 48), d)
    return b.weighted_sum("sum", b.expert_matmul("up", h, stack, experts), weights)


def graph_of(make):
    b, d = Builder("numpy"), Dim("D", 200 if make is not attention_of_other_inputs else 64)
    x = b.embedding("embedding", b.tokens(), b.constant("table", Dim("V", 50), d))
    h = b.rms_norm("norm", x, b.constant("norm.weight", d), 1e-6)
    b.output(make(b, h, d), "logits")
    return b.build()


def run(segment, sizes):
    """Return the outputs of all rows in runs of *sizes*, joined."""
    made, start = [], 0
    for size in sizes:
        rows = Rows.of(size, start)
        made.append(segment.run({"tokens": IDS[start : start + size]}, rows)["logits"])
        start += size
    return np.concatenate(made)


@pytest.mark.parametrize("make", [product_of_columns, attention_of_other_inputs, experts_alone])
def test_rows_of_outside_stepss_do_not_depend_on_the_others(make):
    graph = graph_of(make)
    with CpuDevice(2) as cpu:
        segments = [cpu.compile(graph, RandomWeights(graph), LIMITS) for _ in range(3)]
        assert any(isinstance(step, NumpyStep) for step in segments[0]._program.steps)
        whole = run(segments[0], [40])
        for segment, sizes in zip(segments[1:], ([1] * 40, [7, 32, 1]), strict=True):
            assert np.array_equal(run(segment, sizes), whole)


@pytest.mark.parametrize("make", [product_of_columns, attention_of_other_inputs, experts_alone])
def test_sequences_of_outside_stepss_run_together_and_fork(make):
    graph, turns = graph_of(make), np.arange(20) % 2
    with CpuDevice(2) as cpu:
        segment = cpu.compile(graph, RandomWeights(graph), LIMITS)
        wanted = run(segment, [20])
        segment.forget(0)
        rows = Rows(turns, np.arange(20) // 2, turns == turns)
        both = segment.run({"tokens": IDS[np.arange(20) // 2]}, rows)["logits"]
        segment.fork(0, 1, 7)
        rows = Rows.of(13, 7, sequence=1)
        rest = segment.run({"tokens": IDS[7:20]}, rows)["logits"]

    assert np.array_equal(both[0::2], wanted[:10])
    assert np.array_equal(both[1::2], wanted[:10])
    assert np.array_equal(rest, wanted[7:])


@pytest.mark.parametrize("make", [product_of_columns, attention_of_other_inputs, experts_alone])
def test_rows_of_what_the_cpu_refuses_do_not_depend_on_the_others(make):
    """Rows of several sequences, of which some are wanted, equal the rows run one at a time."""
    graph = graph_of(make)
    device = ReferenceDevice(by_row=True)
    whole, single = (device.compile(graph, RandomWeights(graph), LIMITS) for _ in range(2))
    sequences, positions = np.repeat([0, 1], 20), np.tile(np.arange(20), 2)
    rows = Rows(sequences, positions, positions % 3 == 0)
    y = whole.run({"tokens": IDS}, rows)["logits"]
    for t in range(40):
        at = slice(t, t + 1)
        row = Rows(sequences[at], positions[at], rows.wanted[at])
        assert np.array_equal(single.run({"tokens": IDS[at]}, row)["logits"][0], y[t]), t


def test_logits_with_experts_of_an_odd_width_do_not_depend_on_the_batch(tmp_path):
    plain = tiny.read(tiny.path("qwen3", "f32"))
    path = tiny.write(variants.with_experts(plain, "qwen3moe", 4, 2, n_ff=40), tmp_path)
    ids, found = tiny.ids("qwen3", 40), []
    for n_batch in (40, 1, 7):
        with npurt.Llama(path, "cpu", n_ctx=64, n_batch=n_batch, progress=False) as llm:
            parts = [llm.eval(ids[i : i + n_batch]) for i in range(0, 40, n_batch)]
            found.append(np.concatenate(parts))
            assert "numpy" in {row.actual for row in llm.report().rows}
    assert np.array_equal(found[1], found[0])
    assert np.array_equal(found[2], found[0])
