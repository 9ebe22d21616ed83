"""Tests of the graphs of architectures: the interpreter gives transformers' logits.

tests/data/make/tiny_models.py made the files, and describes what each file exercises.
"""

import numpy as np
import pytest

from npurt.errors import ModelFormatError
from npurt.graph import ops
from npurt.llm.arch.reading import describe
from npurt.llm.file.gguf import GGUF
from tests.graph.models import logits, read
from tests.llm import gguf_files as raw
from tests.llm import tiny
from tests.llm.reference import nmse

MODELS = (
    "exaone4", "gemma2", "gemma3", "glm4", "gpt-oss", "granite", "lfm2", "mistral3", "olmo2",
    "olmo3", "phi3", "phi3-longrope", "smollm3",
)  # fmt: skip
TRANSFORMERS = 1e-9  # NMSE of its float32: below 4e-13 here, 3e-11 for larger models
FLOAT64 = 1e-24


def path(model):
    return tiny.path(model, "bf16")


@pytest.mark.parametrize("model", MODELS)
def test_the_interpreter_gives_transformers_logits(model):
    y = logits(path(model), tiny.ids(model))

    assert nmse(y, tiny.array(model, "hf_f32_prefill")) < TRANSFORMERS


@pytest.mark.parametrize("model", MODELS)
def test_cuts_make_no_difference(model):
    """Windows, convolutions and temperatures depend on the position, not on the row."""
    ids = tiny.ids(model, 24)

    whole = logits(path(model), ids)

    assert nmse(logits(path(model), ids, cuts=[1, 2, 9, 10]), whole) < FLOAT64


@pytest.mark.parametrize("model", MODELS)
def test_the_model_exercises_a_convention(model):
    """Each model has a convention that a plain decoder lacks."""
    graph, _ = read(path(model))
    made = graph.graph.ops
    attentions = [op for op in made if isinstance(op, ops.Attention)]
    plain = {
        "norms": sum(isinstance(op, ops.RMSNorm) for op in made) == 2 * len(attentions) + 1,
        "window": not any(op.window for op in attentions),
        "rope": sum(isinstance(op, ops.Rope) for op in made) == 2 * len(attentions),
        "scale": not any(isinstance(op, ops.Scale | ops.Softcap) for op in made),
        "add": all(op.scale == 1 for op in made if isinstance(op, ops.Add)),
        "split": not any(isinstance(op, ops.Split) for op in made),
        "temperature": all(op.temperature is None for op in attentions),
    }

    assert not all(plain.values())


@pytest.mark.parametrize("model", ["gemma3", "exaone4", "olmo3"])
def test_a_file_may_list_the_layers_that_slide(model, tmp_path):
    file = tiny.read(path(model))
    name = next(v for k, _, v in file.keys if k == "general.architecture")
    layers = next(v for k, _, v in file.keys if k == f"{name}.block_count")
    listed = file.with_key(
        f"{name}.attention.sliding_window_pattern", raw.ARRAY, (raw.BOOL, [True] * layers)
    )

    graph, _ = read(tiny.write(listed, tmp_path))

    assert all(op.window == 8 for op in graph.graph.ops if isinstance(op, ops.Attention))


def test_longrope_takes_short_factors_in_a_short_context():
    with GGUF(path("phi3-longrope")) as file:
        described = describe(file)
        short, long = described.divisors(32), described.divisors(33)

    np.testing.assert_allclose(short, [1 + 0.1 * i for i in range(16)], rtol=1e-6)
    np.testing.assert_allclose(long, [1 + 0.5 * i for i in range(16)], rtol=1e-6)


def test_longrope_without_factors_is_refused(tmp_path):
    named = tiny.read(path("phi3-longrope")).with_key(
        "phi3.rope.scaling.type", raw.STRING, "longrope"
    )
    assert read(tiny.write(named, tmp_path, "whole.gguf"))
    file = tiny.without_tensors(named, lambda name: name.startswith("rope_factors"))

    with pytest.raises(ModelFormatError, match=r"lacks rope_factors_long\.weight"):
        read(tiny.write(file, tmp_path))
