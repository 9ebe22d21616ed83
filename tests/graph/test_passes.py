"""Tests of graph passes: joined ops compute the bits of their parts, and which ops are joined."""

import numpy as np
import pytest

from npurt.graph import ops, passes
from npurt.graph.builder import Builder
from npurt.graph.interpreter import Interpreter
from npurt.graph.ops import Fused
from npurt.graph.rows import Rows
from npurt.graph.state import States
from npurt.graph.tensor import Dim
from tests.graph.models import read
from tests.llm import tiny


def run(graph, load, ids):
    states = States(graph, np.float64)
    interpreter = Interpreter(graph, load)
    first = interpreter.run({"tokens": ids[:5]}, Rows.of(5), states)["logits"]
    rest = interpreter.run({"tokens": ids[5:]}, Rows.of(len(ids) - 5, 5), states)["logits"]
    return np.concatenate([first, rest])


@pytest.mark.parametrize("model", ["llama3", "qwen2", "qwen3", "qwen3moe", "qwen35"])
def test_joined_ops_compute_the_same_bits(model):
    graph, load = read(tiny.path(model, "f32"))
    ids = np.asarray(tiny.ids(model, 12))

    joined = passes.apply(graph.graph, passes.HOST).check()

    assert len(joined.ops) < 0.6 * len(graph.graph.ops)
    np.testing.assert_array_equal(run(joined, load, ids), run(graph.graph, load, ids))


def patterns(graph):
    return [op.pattern for op in graph.ops if isinstance(op, Fused)]


def test_a_dense_layer_is_six_ops():
    graph, _ = read(tiny.path("qwen3", "f32"))

    joined = passes.apply(graph.graph, passes.HOST).check()

    layer = ["add_norm", "products", "attention", "products", "add_norm", "products", "products"]
    layers = sum(op.name.endswith("attn_norm") for op in joined.ops)
    assert patterns(joined) == layer * layers + ["add_norm", "products"]
    qkv = next(op for op in joined.ops if isinstance(op, Fused) and op.pattern == "products")
    assert [part.name for part in qkv.parts] == ["blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v"]


def test_what_another_op_needs_in_between_is_not_joined():
    """An op between two products reads the first, so the products cannot become one op."""
    b = Builder("between")
    d = Dim("D", 4)
    x, w = b.input("x", d), b.constant("w", d, d)
    first = b.matmul("a", x, w, role="same")
    scaled = b.scale("s", first, 2.0)
    second = b.matmul("b", x, w, role="same")
    b.output(b.add("sum", scaled, second))
    graph = b.build()

    joined = passes.apply(graph, [("products", passes.products)]).check()

    assert [len(op.parts) for op in joined.ops if isinstance(op, Fused)] == [1, 1]


def test_rows_that_are_captured_keep_their_sum():
    """An op that copies the sum reads it, so the sum is an output of the joined op."""
    b = Builder("captured")
    d = Dim("D", 4)
    x, y = b.input("x", d), b.input("y", d)
    total = b.add("sum", x, y)
    normed = b.rms_norm("norm", total, None, 1e-6)
    b.copy("hidden", total)
    b.output(b.scale("out", normed, 1.0))

    joined = passes.apply(b.build(), passes.HOST).check()

    fused = joined.ops[0]
    assert [tensor.name for tensor in fused.outs] == ["sum", "norm"]
    given = {"x": np.ones((2, 4)), "y": np.arange(8.0).reshape(2, 4)}
    found = Interpreter(joined, {}.__getitem__).run(given, Rows.of(2), States(joined))
    np.testing.assert_array_equal(found["hidden"], given["x"] + given["y"])


def test_a_gate_of_attention_is_joined_with_the_split_of_its_heads():
    graph, _ = read(tiny.path("qwen35", "f32"))

    joined = passes.apply(graph.graph, passes.HOST).check()

    found = next(op for op in joined.ops if isinstance(op, Fused) and op.pattern == "attention")
    assert {type(part) for part in found.parts} == {
        ops.Split, ops.RMSNorm, ops.Rope, ops.Attention, ops.SigmoidGate
    }  # fmt: skip
    assert len(found.advances) == 2
