"""Tests of graphs: which graphs are refused, and how a graph is printed."""

import json
import shutil
import subprocess

import pytest

from npurt.errors import GraphError, NpurtError
from npurt.graph import ops, render
from npurt.graph.builder import Builder
from npurt.graph.cost import cost
from npurt.graph.graph import Graph
from npurt.graph.meaning import MEANING
from npurt.graph.shapes import why_wrong
from npurt.graph.tensor import ROWS, Dim, Kind, Tensor
from tests.graph.models import read
from tests.llm import tiny

D = Dim("D", 8)


def kinds():
    return [k for k in vars(ops).values() if isinstance(k, type) and issubclass(k, ops.Op)]


def row(name, columns=8, kind=Kind.ACTIVATION):
    return Tensor(name, (ROWS, Dim("D", columns)), kind=kind)


def narrow(columns):
    return Tensor("w", (D, Dim("K", columns)), "q8_0", Kind.WEIGHT)


def add(name, a, b, out):
    return ops.Add(name, a, b, out)


X = row("x", kind=Kind.INPUT)


@pytest.mark.parametrize("kind", [k for k in kinds() if k is not ops.Op], ids=lambda k: k.__name__)
def test_every_op_has_a_meaning_and_a_shape_rule(kind):
    from npurt.graph.shapes import _RULES

    assert kind in MEANING
    assert kind in _RULES


@pytest.mark.parametrize(
    ("made", "match"),
    [
        ([add("a", X, row("y"), row("z"))], "reads y, which no op before it writes"),
        ([add("a", X, X, row("y")), add("b", X, X, row("y"))], "an earlier op also writes y"),
        ([add("a", X, X, X)], "writes x, which is a input"),
        ([add("a", X, X, row("y")), add("b", X, X, row("y", 9))], "have the same name"),
        ([add("a", X, X, row("y", 9))], "shapes differ"),
        ([ops.RMSNorm("n", X, None, row("y"), 1e-6, heads=3)], "does not divide into 3"),
        (
            [ops.MatMul("m", X, narrow(7), None, row("y"), "r")],
            "should be",
        ),
    ],
)  # fmt: skip
def test_a_graph_that_contradicts_itself_is_refused(made, match):
    with pytest.raises(GraphError, match=match) as error:
        Graph("g", tuple(made)).check()

    assert isinstance(error.value, NpurtError)
    assert error.value.remedy


def test_a_state_belongs_to_one_op():
    b = Builder("two")
    h = b.input("x", D)
    once = b.attention("a", h, h, h, 2, 2, 1.0)
    op = b.build().ops[0]
    again = ops.Attention("b", once, once, once, op.keys, op.values, row("out"), 2, 2, 1.0)

    with pytest.raises(GraphError, match="an earlier op also writes the state"):
        Graph("two", (op, again)).check()


def test_heads_must_share_key_heads_evenly():
    b = Builder("odd")
    q, k = b.input("q", Dim("Q", 12)), b.input("k", D)
    b.attention("a", q, k, k, 3, 2, 1.0)

    with pytest.raises(GraphError, match="3 heads do not share 2 key heads"):
        b.build()


@pytest.fixture(scope="module")
def model():
    return read(tiny.path("qwen35", "f32"))[0].graph


def test_lines_name_ops_shapes_and_conventions(model):
    lines = render.lines(model)

    assert len(lines) == len(model.ops)
    assert lines[0] == "embedding f32[T, D=128] = Embedding(tokens, token_embd.weight)"
    text = "\n".join(lines)
    assert "blk.3.attention f32[T, N=256] = Attention(" in text
    assert "pairing=halves" in text
    assert lines[-1].startswith("logits f32[L, V=608] = MatMul(output_norm, output")


def test_the_dict_is_json_and_complete(model):
    found = json.loads(json.dumps(render.as_dict(model)))

    assert [op["name"] for op in found["ops"]] == [op.name for op in model.ops]
    named = {t for op in found["ops"] for t in op["reads"] + op["writes"] + op["states"]}
    assert named == set(found["tensors"])
    assert found["tensors"]["logits"] == {
        "kind": "output", "dtype": "f32", "shape": ["L", 608], "letters": ["L", "V"]
    }  # fmt: skip


def test_the_picture_has_a_box_for_each_op(model):
    text = render.dot(model)

    assert text.count("[label=") >= len(model.ops)
    assert text.count("{") == text.count("}") == 1
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tsvg"], input=text, text=True, check=True, capture_output=True)


def test_costs_of_a_model_are_those_of_its_products(model):
    macs = sum(cost(op, 1).macs for op in model.ops if isinstance(op, ops.MatMul))
    weights = {op.weight.name: op.weight for op in model.ops if isinstance(op, ops.MatMul)}

    assert macs == sum(w.shape[0].size * w.columns for w in weights.values())
    assert cost(model.ops[-1], 3).weight_bytes == 608 * 128 * 4


def test_why_wrong_is_none_for_every_op_of_a_model(model):
    assert [why_wrong(op) for op in model.ops] == [None] * len(model.ops)


def test_last_use_is_after_the_op_that_writes(model):
    made = {tensor.name: i for i, op in enumerate(model.ops) for tensor in op.writes}

    last = model.last_use()

    assert last.keys() == made.keys()
    assert all(last[name] > made[name] or name == "logits" for name in made)
