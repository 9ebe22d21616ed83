"""Tests of the output matrix in `npurt convert`: tied to the embedding, separate, or missing."""

import warnings

import numpy as np
import pytest

import npurt
from npurt.llm.convert.folder import convert
from npurt.llm.file.gguf import GGUF
from tests.llm import checkpoints
from tests.llm.checkpoints import change, encode, folder_of, refused

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
MODELS = ("qwen2", "gemma3", "lfm2")  # config.json says that these are tied


def folder_with(model, folder, **tensors):
    """Write the folder of *model* with other `EMBEDDING` and `HEAD`; None removes a tensor."""
    folder_of(model, folder)
    names = {"embedding": EMBEDDING, "head": HEAD}
    found = checkpoints.weights(model) | {names[key]: each for key, each in tensors.items()}
    content = encode({name: each for name, each in found.items() if each is not None})
    (folder / "model.safetensors").write_bytes(content)
    return folder


def other(model):
    """Return an output matrix that differs from the embedding of *model*."""
    shape = checkpoints.weights(model)[EMBEDDING][1].shape
    return "F32", np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def converted(folder, target):
    """Convert *folder*; return the values of output.weight (None: no such tensor) and warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        convert(folder, target, "f32", progress=False)
    with GGUF(target) as file:
        head = file.get("output.weight")
        return None if head is None else head.dequantize(), [str(each.message) for each in caught]


@pytest.mark.parametrize("model", MODELS)
def test_a_trained_output_matrix_is_kept_with_a_warning(tmp_path, model):
    head = other(model)
    folder = folder_with(model, tmp_path / "m", head=head)
    found, said = converted(folder, tmp_path / "a.gguf")
    assert (found == head[1]).all()
    [warning] = said
    assert "tie" in warning
    assert HEAD in warning


def test_the_logits_are_those_of_the_untied_model(tmp_path):
    folder = folder_with("qwen2", tmp_path / "m", head=other("qwen2"))
    converted(folder, tmp_path / "a.gguf")
    change(folder, "config.json", tie_word_embeddings=False)
    _, said = converted(folder, tmp_path / "b.gguf")
    assert said == []
    logits = []
    for name in ("a.gguf", "b.gguf"):
        with npurt.Llama(tmp_path / name, n_ctx=64) as model:
            logits.append(model.eval([5, 9, 33, 70, 8]).copy())
    assert (logits[0] == logits[1]).all()


@pytest.mark.parametrize("model", MODELS)
def test_a_copy_of_the_embedding_is_left_out(tmp_path, model):
    folder = folder_with(model, tmp_path / "m", head=checkpoints.weights(model)[EMBEDDING])
    found, said = converted(folder, tmp_path / "a.gguf")
    assert found is None
    assert said == []


@pytest.mark.parametrize("changed", [False, True])
def test_values_are_compared_and_not_their_types(tmp_path, changed):
    _, array = checkpoints.weights("qwen2")[EMBEDDING]
    half = array.astype(np.float16)
    head = half.astype(np.float32)
    head[-1, -1] += np.float32(changed)
    folder = folder_with("qwen2", tmp_path / "m", embedding=("F16", half), head=("F32", head))
    found, said = converted(folder, tmp_path / "a.gguf")
    assert (found is not None) == changed == bool(said)


def test_an_output_matrix_of_another_shape_is_refused(tmp_path):
    dtype, array = other("qwen2")
    folder = folder_with("qwen2", tmp_path / "m", head=(dtype, array[:600]))
    with pytest.warns(UserWarning, match=HEAD):
        error = refused(folder, tmp_path / "a.gguf", r"output\.weight has shape \(600, 128\)")
    assert error.remedy


@pytest.mark.parametrize("model", MODELS)
def test_an_output_matrix_stands_for_a_tied_embedding(tmp_path, model):
    plain = folder_of(model, tmp_path / "plain")
    converted(plain, tmp_path / "plain.gguf")
    same = checkpoints.weights(model)[EMBEDDING]
    folder = folder_with(model, tmp_path / "m", embedding=None, head=same)
    found, said = converted(folder, tmp_path / "a.gguf")
    assert found is None
    assert said == []
    with GGUF(tmp_path / "a.gguf") as made, GGUF(tmp_path / "plain.gguf") as known:
        assert set(made) == set(known)
        for name in known:
            assert (made[name].blocks == known[name].blocks).all()


@pytest.mark.parametrize("tied", [False, ...])
def test_a_missing_embedding_is_named_if_the_output_matrix_is_separate(tmp_path, tied):
    folder = folder_with("llama3", tmp_path / "m", embedding=None)
    change(folder, "config.json", tie_word_embeddings=tied)
    refused(folder, tmp_path / "a.gguf", rf"the checkpoint has no {EMBEDDING}")


def test_an_output_matrix_that_is_missing_is_named(tmp_path):
    folder = folder_of("qwen2", tmp_path / "m")
    change(folder, "config.json", tie_word_embeddings=False)
    refused(folder, tmp_path / "a.gguf", "lm_head")
