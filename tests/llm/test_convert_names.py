"""Tests of `npurt convert` on checkpoints whose names or files differ from transformers' own."""

import json

import numpy as np
import pytest

from npurt.llm.convert.folder import convert
from npurt.llm.file.gguf import GGUF
from tests.llm import checkpoints
from tests.llm.checkpoints import change, encode, folder_of, refused


def same_file(folder, target, plain):
    """Check that *folder* is converted to the tensors of the folder *plain*."""
    convert(plain, target.with_name("plain.gguf"), "f32", progress=False)
    convert(folder, target, "f32", progress=False)
    with GGUF(target) as made, GGUF(target.with_name("plain.gguf")) as known:
        assert set(made) == set(known)
        assert all((made[name].blocks == known[name].blocks).all() for name in known)


def renamed(folder, rename, extra=()):
    """Rename the tensors of the checkpoint of qwen2 in *folder* by the function *rename*."""
    tensors = {rename(name): each for name, each in checkpoints.weights("qwen2").items()}
    (folder / "model.safetensors").write_bytes(encode(tensors | dict(extra)))
    return folder


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module.{name}",
        lambda name: f"base_model.model.{name}",
        lambda name: f"module._orig_mod.base_model.model.{name}",
        lambda name: f"language_model.{name}",
        lambda name: name.replace("model.", "model.language_model.", 1),
        lambda name: name.replace("model.", "language_model.", 1),
        lambda name: name.removeprefix("model."),
    ],
)
def test_prefixes_of_all_names_are_removed(tmp_path, rename):
    plain = folder_of("qwen2", tmp_path / "plain")
    folder = renamed(folder_of("qwen2", tmp_path / "m"), rename)
    same_file(folder, tmp_path / "a.gguf", plain)


@pytest.mark.parametrize(
    "name",
    ["base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
     "model.layers.0.self_attn.q_proj.base_layer.weight"],
)  # fmt: skip
def test_an_adapter_that_is_not_merged_is_named(tmp_path, name):
    lora = {name: ("F32", np.zeros((2, 128), np.float32))}
    folder = renamed(folder_of("qwen2", tmp_path / "m"), lambda n: f"base_model.model.{n}", lora)
    error = refused(folder, tmp_path / "a.gguf", "a LoRA adapter that is not merged")
    assert "merge_and_unload" in error.remedy


# --- Files ----------------------------------------------------------------------------------------


def without_index(folder, files):
    folder_of("qwen2", folder, files)
    (folder / "model.safetensors.index.json").unlink()
    return folder


def test_shards_without_an_index_are_read(tmp_path):
    plain = folder_of("qwen2", tmp_path / "plain")
    same_file(without_index(tmp_path / "m", 3), tmp_path / "a.gguf", plain)


def test_a_single_file_of_another_name_is_read(tmp_path):
    plain = folder_of("qwen2", tmp_path / "plain")
    folder = folder_of("qwen2", tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "qwen.safetensors")
    (folder / "adapter_model.safetensors").write_bytes(b"x")  # no part of the model
    same_file(folder, tmp_path / "a.gguf", plain)


def test_a_shard_that_is_missing_is_named(tmp_path):
    folder = without_index(tmp_path / "m", 3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, tmp_path / "a.gguf", r"lacks 1 of 3 files: model-00002-of-00003\.safetensors")


def test_files_of_several_models_are_not_mixed(tmp_path):
    folder = without_index(tmp_path / "m", 2)
    for name in ("other.safetensors", "model-00001-of-00003.safetensors"):
        (folder / name).write_bytes(b"x")
        error = refused(folder, tmp_path / "a.gguf", "several models")
        assert "config.json" in error.remedy
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [("pytorch_model.bin", "PyTorch checkpoint", "save_pretrained"),
     ("m.gguf", "with GGUF files", "m.gguf")],
)  # fmt: skip
def test_a_folder_without_safetensors_is_described(tmp_path, name, what, remedy):
    folder = folder_of("qwen2", tmp_path / "m")
    (folder / "model.safetensors").rename(folder / name)
    assert remedy in refused(folder, tmp_path / "a.gguf", what).remedy


@pytest.mark.parametrize("same", [True, False])
def test_a_tensor_in_two_shards_must_be_the_same(tmp_path, same):
    plain = folder_of("qwen2", tmp_path / "plain")
    folder = folder_of("qwen2", tmp_path / "m", files=2)
    name = "model.norm.weight"
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    other = next(file for file in sorted(set(index.values())) if file != index[name])
    dtype, array = checkpoints.weights("qwen2")[name]
    tensors = {n: each for n, each in checkpoints.weights("qwen2").items() if index[n] == other}
    tensors[name] = dtype, array if same else array + np.float32(1)
    (folder / other).write_bytes(encode(tensors))
    if same:
        same_file(folder, tmp_path / "a.gguf", plain)
    else:
        error = refused(folder, tmp_path / "a.gguf", f"{name} twice with different content")
        assert index[name] in error.what
        assert other in error.what


# --- Lists of equal numbers -----------------------------------------------------------------------


def test_a_setting_may_be_a_list_of_equal_numbers(tmp_path):
    plain = folder_of("qwen2", tmp_path / "plain")
    folder = folder_of("qwen2", tmp_path / "m")
    config = checkpoints.CONFIGS["qwen2"]
    names = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
    layers = config["num_hidden_layers"]
    change(folder, "config.json", **{name: [config[name]] * layers for name in names})
    same_file(folder, tmp_path / "a.gguf", plain)


@pytest.mark.parametrize("values", [[288, 288, 96], [], [288], [288] * 9, ["288"] * 3])
def test_a_list_of_other_numbers_is_refused(tmp_path, values):
    folder = folder_of("llama3", tmp_path / "m")
    change(folder, "config.json", intermediate_size=values)
    refused(folder, tmp_path / "a.gguf", "intermediate_size is")
