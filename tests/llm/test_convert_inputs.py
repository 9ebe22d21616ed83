"""Tests of `npurt convert` on damaged or odd folders: no file is lost, no setting is ignored."""

import json
import math
import os

import numpy as np
import pytest

from npurt.errors import ModelFormatError, NpurtError, NumericsError, SettingError
from npurt.llm.convert.checkpoint import safetensors
from npurt.llm.convert.checkpoint.families import FAMILIES
from npurt.llm.convert.checkpoint.keys import keys_of
from npurt.llm.convert.checkpoint.settings import CheckpointSettings
from npurt.llm.convert.folder import convert
from npurt.llm.convert.requantise import requantise
from npurt.llm.convert.tokenizer.vocabulary import vocabulary_of
from npurt.llm.file.gguf import GGUF
from tests.llm import checkpoints
from tests.llm.checkpoints import CONFIGS, change, folder_of, gguf_path, refused

# --- The output -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (1, "model.safetensors"),
        (1, "config.json"),
        (1, "tokenizer.json"),
        (1, "tokenizer_config.json"),
        (1, "chat_template.jinja"),
        (2, "model-00002-of-00002.safetensors"),
        (2, "model.safetensors.index.json"),
    ],
)
def test_no_file_of_the_checkpoint_is_overwritten(tmp_path, files, name):
    folder = folder_of("qwen2", tmp_path / "m", files)
    (folder / "chat_template.jinja").write_text("T")
    link = tmp_path / "link.gguf"
    link.symlink_to(folder / name)
    before = (folder / name).read_bytes()
    for target in (folder / name, link):
        with pytest.raises(SettingError, match="is a source file") as caught:
            convert(folder, target, progress=False)
        assert "another name" in caught.value.remedy
    assert (folder / name).read_bytes() == before


def test_an_older_output_in_the_folder_is_replaced(tmp_path):
    folder = folder_of("qwen2", tmp_path / "m")
    (folder / "a.gguf").write_bytes(b"old")
    convert(folder, folder / "a.gguf", progress=False)
    with GGUF(folder / "a.gguf") as file:
        assert file.architecture == "qwen2"


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    folder = folder_of("qwen2", tmp_path / "m")
    with pytest.raises(NpurtError, match="cannot write"):
        convert(folder, tmp_path / ("a" * 300), progress=False)
    with pytest.raises(NpurtError, match="cannot write"):
        requantise(gguf_path("qwen2"), tmp_path / ("a" * 300), "q8_0", progress=False)


# --- Rotary settings ------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    "values",
    [
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_parameters": None, "rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5},
    ],
)
def test_rotary_scaling_that_a_user_added_counts(values):
    config = CONFIGS["qwen3"] | values | {"rope_scaling": YARN}
    keys = keys_of(FAMILIES["qwen3"], CheckpointSettings(config))
    assert keys["qwen3.rope.freq_base"] == 5e5
    assert keys["qwen3.rope.scaling.type"] == "yarn"
    assert keys["qwen3.rope.scaling.factor"] == 4.0
    assert keys["qwen3.rope.scaling.original_context_length"] == 128


def test_rotary_scaling_that_a_user_added_keeps_how_much_of_a_head_rotates():
    config = CONFIGS["glm4"] | {"rope_scaling": YARN}
    family = FAMILIES["glm4"]
    keys, plain = (
        keys_of(family, CheckpointSettings(config)),
        keys_of(family, CheckpointSettings(CONFIGS["glm4"])),
    )
    assert keys["glm4.rope.dimension_count"] == plain["glm4.rope.dimension_count"]
    assert keys["glm4.rope.scaling.type"] == "yarn"


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("value", [[1], [], "x", "", 0, 4.0, False])
def test_rotary_settings_that_are_no_object_are_refused(name, value):
    with pytest.raises(ModelFormatError, match=name):
        keys_of(FAMILIES["qwen3"], CheckpointSettings(CONFIGS["qwen3"] | {name: value}))


# --- Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize(
    "name", ["model.layers.1.mlp.up_proj.weight", "model.layers.1.input_layernorm.weight"]
)
def test_weights_that_are_no_numbers_are_refused(tmp_path, name, kind, value):
    folder = folder_of("qwen2", tmp_path / "m")
    tensors = checkpoints.weights("qwen2")
    dtype, array = tensors[name]
    assert dtype == "F32"
    array = array.copy()
    array[-1] = value
    data = checkpoints.encode(tensors | {name: (dtype, array)})
    (folder / "model.safetensors").write_bytes(data)
    error = refused(folder, tmp_path / "a.gguf", "NaN or infinity", kind)
    assert isinstance(error, NumericsError)
    assert "f32" not in error.remedy  # f32 would not help
    row = len(array) - 1 if array.ndim == 2 else 0
    assert f"row {row} " in error.what


@pytest.mark.parametrize(
    ("kind", "value", "remedy"), [("f16", 1e6, "bf16"), ("bf16", 3.4e38, "choose f32")]
)
def test_weights_beyond_the_type_are_refused(tmp_path, kind, value, remedy):
    folder = folder_of("qwen2", tmp_path / "m")
    tensors = checkpoints.weights("qwen2")
    name = "model.layers.1.mlp.up_proj.weight"
    dtype, array = tensors[name]
    tensors[name] = dtype, np.full_like(array, value)
    (folder / "model.safetensors").write_bytes(checkpoints.encode(tensors))
    error = refused(folder, tmp_path / "a.gguf", r"blk\.1\.ffn_up", kind)
    assert remedy in error.remedy


# --- safetensors ----------------------------------------------------------------------------------


def file_of(folder, table, data):
    """Write model.safetensors with header *table* (a dict or JSON) to *folder*; return *folder*."""
    head = (table if isinstance(table, str) else json.dumps(table)).encode()
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    return folder


def entry(start, stop):
    return {"dtype": "F32", "shape": [(stop - start) // 4], "data_offsets": [start, stop]}


def test_tensors_may_come_in_any_order_and_be_empty(tmp_path):
    table = {"b": entry(8, 16), "e": entry(8, 8), "a": entry(0, 8), "z": entry(16, 16)}
    data = np.arange(4, dtype="<f4").tobytes()
    found = safetensors.read(file_of(tmp_path / "m", table, data))
    assert {name: len(each.data) for name, each in found.items()} == {"a": 8, "b": 8, "e": 0,
                                                                      "z": 0}  # fmt: skip
    assert found["b"].tensor().dequantize().tolist() == [2, 3]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"a": entry(0, 8), "b": entry(0, 8), "c": entry(8, 16)}, "b begins at 0"),
        ({"a": entry(0, 12), "b": entry(8, 16)}, "b begins at 8"),
        ({"a": entry(0, 4), "b": entry(8, 16)}, "b begins at 8"),
        ({"a": entry(4, 16)}, "a begins at 4"),
        ({"a": entry(0, 12)}, "tensors end at 12"),
        ({}, "tensors end at 0"),
    ],
)
def test_data_that_overlap_or_belong_to_nothing_are_refused(tmp_path, table, says):
    with pytest.raises(ModelFormatError, match=says):
        safetensors.read(file_of(tmp_path / "m", table, bytes(16)))


@pytest.mark.parametrize(
    "table",
    [
        f'{{"a": {json.dumps(entry(0, 8))}, "a": {json.dumps(entry(0, 8))}}}',
        '{"a": {"dtype": "F16", "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
    ],
)
def test_a_name_that_stands_twice_is_refused(tmp_path, table):
    with pytest.raises(ModelFormatError, match="twice"):
        safetensors.read(file_of(tmp_path / "m", table, bytes(8)))


@pytest.mark.parametrize(
    ("model", "name", "other"),
    [
        ("qwen2", "model.layers.0.self_attn.q_proj.weight",
         "model.layers.00.self_attn.q_proj.weight"),
        ("qwen3moe", "model.layers.0.mlp.experts.1.up_proj.weight",
         "model.layers.0.mlp.experts.01.up_proj.weight"),
        ("qwen3moe", "model.layers.0.mlp.experts.0.up_proj.weight",
         "model.layers.0.mlp.experts.*.up_proj.weight"),
    ],
)  # fmt: skip
def test_another_spelling_of_a_tensors_name_is_refused(tmp_path, model, name, other):
    folder = folder_of(model, tmp_path / "m")
    tensors = checkpoints.weights(model)
    data = checkpoints.encode(tensors | {other: tensors[name]})
    (folder / "model.safetensors").write_bytes(data)
    error = refused(folder, tmp_path / "a.gguf", "which are no tensors of a")
    assert other in error.what


def test_two_names_of_one_tensor_are_refused(tmp_path):
    folder = folder_of("phi3", tmp_path / "m")
    tensors = checkpoints.weights("phi3")
    fused = "model.layers.0.mlp.gate_up_proj.weight"
    other = fused.replace("gate_up", "up")
    data = checkpoints.encode(tensors | {other: tensors[fused]})
    (folder / "model.safetensors").write_bytes(data)
    error = refused(folder, tmp_path / "a.gguf", "the same tensor")
    assert fused in error.what
    assert other in error.what


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "model.safetensors.index.json", "config.json", "tokenizer.json",
     "chat_template.jinja"],
)  # fmt: skip
def test_a_fifo_is_refused_at_once(tmp_path, name):
    folder = folder_of("qwen2", tmp_path / "m")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    refused(folder, tmp_path / "a.gguf", "regular file")


# --- LFM2 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "width"),
    [  # config.json of LFM2-350M, -700M, -1.2B and -2.6B, and the widths of their weights
        ({"block_ff_dim": 6656, "block_auto_adjust_ff_dim": True}, 4608),
        ({"block_ff_dim": 10240, "block_auto_adjust_ff_dim": True}, 6912),
        ({"block_ff_dim": 12288, "block_auto_adjust_ff_dim": True, "intermediate_size": 8192},
         8192),
        ({"block_ff_dim": 10752, "block_auto_adjust_ff_dim": False}, 10752),
        ({"intermediate_size": 6656, "block_auto_adjust_ff_dim": True}, 4608),
        ({"intermediate_size": 6656}, 4608),  # as transformers reads it
        ({"block_ff_dim": 300, "block_auto_adjust_ff_dim": True, "block_multiple_of": 32,
          "block_ffn_dim_multiplier": 1.5}, 320),
    ],
)  # fmt: skip
def test_the_width_of_lfm2(values, width):
    common = {k: v for k, v in CONFIGS["lfm2"].items()
              if k not in ("intermediate_size", "block_auto_adjust_ff_dim")}  # fmt: skip
    keys = keys_of(FAMILIES["lfm2"], CheckpointSettings(common | values))
    assert keys["lfm2.feed_forward_length"] == width


def test_an_lfm2_as_it_was_published_is_converted(tmp_path):
    folder = folder_of("lfm2", tmp_path / "m")
    width = CONFIGS["lfm2"]["intermediate_size"]
    rope = CONFIGS["lfm2"]["rope_parameters"]
    idxs = [i for i, kind in enumerate(CONFIGS["lfm2"]["layer_types"]) if kind != "conv"]
    change(folder, "config.json", intermediate_size=..., layer_types=..., head_dim=...,
            rope_parameters=..., tie_word_embeddings=..., rope_theta=rope["rope_theta"],
            tie_embedding=True, full_attn_idxs=idxs, block_auto_adjust_ff_dim=True,
            block_ff_dim=width * 3 // 2, block_multiple_of=32)  # fmt: skip
    convert(folder, tmp_path / "a.gguf", "f32", progress=False)
    with GGUF(tmp_path / "a.gguf") as found, GGUF(gguf_path("lfm2")) as known:
        for key, value in known.metadata.items():
            if key.startswith("lfm2."):
                assert np.all(found.metadata[key] == value), key


# --- Tokenizers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["pre_tokenizer", "normalizer", "post_processor"])
def test_a_sequence_without_parts_is_refused(tmp_path, step):
    folder = folder_of("qwen2", tmp_path / "m")
    change(folder, "tokenizer.json", **{step: {"type": "Sequence"}})
    refused(folder, tmp_path / "a.gguf", r"tokenizer\.json: a Sequence")


@pytest.mark.parametrize("depth", [1200, 50_000])
def test_sequences_without_end_are_refused(tmp_path, depth):
    folder = folder_of("qwen2", tmp_path / "m")
    change(folder, "tokenizer.json", pre_tokenizer="@")
    path = folder / "tokenizer.json"
    deep = '{"type": "Sequence", "pretokenizers": [' * depth + "]}" * depth
    path.write_text(path.read_text().replace('"@"', deep))
    refused(folder, tmp_path / "a.gguf", r"tokenizer\.json")


def test_lines_of_a_template_end_as_text_files_end_them(tmp_path):
    folder = folder_of("qwen2", tmp_path / "m")
    (folder / "chat_template.jinja").write_bytes(b"a\r\nb\n")
    assert vocabulary_of(folder, "qwen2", 608)["tokenizer.chat_template"] == "a\nb\n"
