"""Tests of the graphs of models: the logits are those of transformers for any split of tokens."""

import numpy as np
import pytest

from npurt.errors import ModelFormatError
from npurt.graph.interpreter import Interpreter
from npurt.graph.rows import Rows
from npurt.graph.state import States
from tests.graph.models import logits, read
from tests.llm import reference, tiny, variants
from tests.llm.reference import nmse

MODELS = ("llama3", "qwen2", "qwen3", "qwen3moe", "qwen35")
TRANSFORMERS = 1e-9  # NMSE of its float32: 3e-11 in the README of the oracles
FLOAT64 = 1e-24  # NMSE of two float64 evaluations in different orders
FLOAT32 = 1e-9  # as TRANSFORMERS: the same number of roundings


@pytest.mark.parametrize("model", MODELS)
def test_the_interpreter_gives_transformers_logits(model):
    y = logits(tiny.path(model, "f32"), tiny.ids(model))

    assert y.dtype == np.float64
    assert nmse(y, tiny.array(model, "hf_f32_prefill")) < TRANSFORMERS


@pytest.mark.parametrize("model", MODELS)
def test_float32_is_as_close_as_transformers(model):
    ids = tiny.ids(model, 40)

    y = logits(tiny.path(model, "f32"), ids, dtype=np.float32)

    assert y.dtype == np.float32
    assert nmse(y, logits(tiny.path(model, "f32"), ids)) < FLOAT32


@pytest.mark.parametrize("model", MODELS)
def test_cuts_make_no_difference(model):
    ids = tiny.ids(model, 30)
    path = tiny.path(model, "f32")

    whole = logits(path, ids)

    assert nmse(logits(path, ids, cuts=[1, 2, 3, 11, 29]), whole) < FLOAT64


@pytest.mark.parametrize("model", ["qwen3", "qwen35"])
def test_two_sequences_in_one_run_do_not_see_each_other(model):
    path, ids = tiny.path(model, "f32"), np.asarray(tiny.ids(model, 24))
    graph, load = read(path)
    interpreter, states = Interpreter(graph.graph, load), States(graph.graph, np.float64)
    first, second = ids[:10], ids[10:24]
    mixed = np.concatenate([first[:4], second, first[4:]])
    rows = Rows(
        sequences=np.array([7] * 4 + [3] * 14 + [7] * 6),
        positions=np.concatenate([np.arange(4), np.arange(14), np.arange(4, 10)]),
        wanted=np.ones(24, bool),
    )

    y = interpreter.run({"tokens": mixed}, rows, states)["logits"]

    assert nmse(y[4:18], logits(path, second)) < FLOAT64
    assert nmse(np.delete(y, np.s_[4:18], 0), logits(path, first)) < FLOAT64


def test_only_wanted_rows_have_logits():
    model, load = read(tiny.path("qwen2", "f32"))
    ids = np.asarray(tiny.ids("qwen2", 9))

    y = Interpreter(model.graph, load).run(
        {"tokens": ids}, Rows.of(9, wanted=2), States(model.graph, np.float64)
    )["logits"]

    whole = logits(tiny.path("qwen2", "f32"), ids)
    assert y.shape == (2, whole.shape[1])
    assert nmse(y, whole[-2:]) < FLOAT64


def test_states_can_be_copied_and_restored():
    model, load = read(tiny.path("qwen35", "f32"))
    ids = np.asarray(tiny.ids("qwen35", 12))
    interpreter, states = Interpreter(model.graph, load), States(model.graph, np.float64)
    interpreter.run({"tokens": ids[:8]}, Rows.of(8), states)
    copied = states.copy(0)
    first = interpreter.run({"tokens": ids[8:]}, Rows.of(4, 8), states)["logits"]

    states.restore(0, copied)
    again = interpreter.run({"tokens": ids[8:]}, Rows.of(4, 8), states)["logits"]

    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(
    ("model", "architecture", "options"),
    [
        ("qwen2", "qwen2moe", {"shared": 80}),
        ("qwen35", "qwen35moe", {"shared": 64}),
        ("llama3", "llama", {}),
    ],
)
def test_mixtures_agree_with_the_reference(tmp_path, model, architecture, options):
    file = variants.with_experts(tiny.read(tiny.path(model, "f32")), architecture, 5, 2, **options)
    path, ids = tiny.write(file, tmp_path), tiny.ids(model, 20)

    assert nmse(logits(path, ids), reference.logits(path, ids)) < FLOAT64


@pytest.mark.parametrize("legacy", [False, True])
def test_weights_may_be_rows_of_another_tensor(tmp_path, legacy):
    file = variants.grouped(tiny.read(tiny.path("qwen35", "f32")), legacy=legacy)
    path = tiny.write(file, tmp_path)

    y = logits(path, tiny.ids("qwen35"))

    assert nmse(y, tiny.array("qwen35", "hf_f32_prefill")) < TRANSFORMERS


def test_fused_weights_give_the_same(tmp_path):
    file = tiny.read(tiny.path("qwen35", "f32"))
    parts = ("attn_q", "attn_k", "attn_v")
    path = tiny.write(variants.joined(file, "attn_qkv", *parts), tmp_path)
    ids = tiny.ids("qwen35", 20)

    assert nmse(logits(path, ids), logits(tiny.path("qwen35", "f32"), ids)) < FLOAT64


def test_a_missing_tensor_is_named(tmp_path):
    file = tiny.without_tensors(
        tiny.read(tiny.path("qwen3", "f32")), lambda name: name == "blk.1.attn_k_norm.weight"
    )

    with pytest.raises(ModelFormatError, match=r"lacks blk\.1\.attn_k_norm\.weight"):
        read(tiny.write(file, tmp_path))


def test_a_tensor_that_nothing_uses_is_named(tmp_path):
    file = tiny.with_tensor(
        tiny.read(tiny.path("qwen3", "f32")), "blk.1.extra.weight", np.zeros((4, 4))
    )

    with pytest.raises(ModelFormatError, match=r"blk\.1\.extra\.weight, which qwen3 does not use"):
        read(tiny.write(file, tmp_path))
