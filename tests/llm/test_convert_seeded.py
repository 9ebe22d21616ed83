"""Tests of `npurt convert` on checkpoints of random numbers: logits are those of transformers."""

import json

import numpy as np
import pytest

from npurt.errors import ModelFormatError
from npurt.llm.convert.folder import convert
from npurt.llm.decode.llama import Llama
from npurt.llm.file.gguf import GGUF
from tests.llm import checkpoints, seeded, tiny
from tests.llm.reference import nmse
from tests.llm.test_logits import FLOAT_NMSE


def folder_of(model, folder, change=dict):
    seeded.write(model, folder, change)
    checkpoints.tokenizer("llama3").save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("model", seeded.MODELS)
def test_logits_are_those_of_transformers(model, tmp_path):
    convert(folder_of(model, tmp_path), tmp_path / "made.gguf", "f32", progress=False)
    with Llama(tmp_path / "made.gguf", "numpy", n_ctx=64, kv_type="f32") as llm:
        found = llm.eval(seeded.IDS)
    known = np.load(seeded.FOLDER / f"{model}-logits.npy")

    assert known.std() > 0.1
    assert nmse(found, known) < FLOAT_NMSE


def test_mixtral_is_a_llama_with_experts(tmp_path):
    """The file has the keys and names that llama.cpp reads."""
    convert(folder_of("mixtral", tmp_path), tmp_path / "made.gguf", "f32", progress=False)
    with GGUF(tmp_path / "made.gguf") as file:
        assert file.architecture == "llama"
        assert file.metadata["llama.expert_count"] == 4
        assert file.metadata["llama.expert_used_count"] == 2
        assert file["blk.1.ffn_down_exps.weight"].shape == (4, 64, 96)
        assert file["blk.1.ffn_gate_inp.weight"].shape == (4, 64)


def test_a_qwen35_has_the_keys_and_tensors_that_llama_cpp_writes(tmp_path):
    convert(folder_of("qwen3_5", tmp_path), tmp_path / "made.gguf", "f32", progress=False)
    with GGUF(tmp_path / "made.gguf") as found, GGUF(tiny.path("qwen35", "f32")) as known:
        for key in known.metadata:
            if key.startswith("qwen35."):
                assert np.all(found.metadata[key] == known.metadata[key]), key
        assert {n: (t.shape, t.format) for n, t in found.tensors.items()} == {
            n: (t.shape, t.format) for n, t in known.tensors.items()
        }


def as_published(tensors):
    """Return the tensors as Qwen3.5 is published: beside other parts, and with stacked experts."""
    found, experts = {}, {}
    for name, (_, array) in tensors.items():
        stem, _, rest = name.partition(".mlp.experts.")
        if rest:
            number, part, _ = rest.split(".")
            experts.setdefault(f"{stem}.mlp.experts.", {})[int(number), part] = array
        else:
            found[name] = "F32", array
    for stem, each in experts.items():
        gate, up, down = (
            np.stack([each[i, f"{part}_proj"] for i in range(len(each) // 3)])
            for part in ("gate", "up", "down")
        )
        found[f"{stem}gate_up_proj"] = "F32", np.concatenate([gate, up], 1)
        found[f"{stem}down_proj"] = "F32", down
    found = {n.replace("model.", "model.language_model.", 1): each for n, each in found.items()}
    other = "F32", np.zeros((3, 5), np.float32)
    return found | {"model.visual.blocks.0.attn.qkv.weight": other, "mtp.fc.weight": other}


@pytest.mark.parametrize("model", ["qwen3_5", "qwen3_5_moe"])
def test_a_published_qwen35_gives_the_same_file(model, tmp_path):
    plain, whole = tmp_path / "plain", tmp_path / "whole"
    for folder, change in ((plain, dict), (whole, as_published)):
        folder.mkdir()
        folder_of(model, folder, change)
    text = json.loads((whole / "config.json").read_text())
    outer = {"model_type": model, "architectures": ["Qwen3_5ForConditionalGeneration"]}
    (whole / "config.json").write_text(json.dumps(outer | {"text_config": text}))

    convert(plain, tmp_path / "plain.gguf", "q8_0", progress=False)
    with pytest.warns(UserWarning, match="which are not converted"):
        convert(whole, tmp_path / "whole.gguf", "q8_0", progress=False)

    with GGUF(tmp_path / "plain.gguf") as known, GGUF(tmp_path / "whole.gguf") as found:
        assert set(found) == set(known)
        assert all(found[name].blocks.tobytes() == known[name].blocks.tobytes() for name in known)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("gate_up_proj", (4, 33, 64)), ("down_proj", (4, 64)), ("gate_up_proj", (4, 0, 64))],
)
def test_experts_that_are_no_stack_are_refused(name, shape, tmp_path):
    def change(tensors):
        name_of = f"model.layers.0.mlp.experts.{name}"
        return as_published(tensors) | {name_of: ("F32", np.zeros(shape, np.float32))}

    checkpoints.refused(folder_of("qwen3_5_moe", tmp_path, change), tmp_path / "a.gguf", name)


@pytest.mark.parametrize("part", ["out_proj", "in_proj_qkv", "A_log"])
def test_heads_that_contradict_the_weights_are_refused(part, tmp_path):
    def change(tensors):
        name = next(name for name in tensors if f"layers.0.linear_attn.{part}" in name)
        dtype, array = tensors[name]
        array = array[..., :-1] if part == "out_proj" else array[:-1]
        return tensors | {name: (dtype, array)}

    folder = folder_of("qwen3_5", tmp_path, change)
    error = checkpoints.refused(folder, tmp_path / "a.gguf", part)
    assert "config.json" in error.what


@pytest.mark.parametrize(
    ("model", "setting"),
    [("gemma", {"hidden_activation": "gelu"}), ("gemma", {"use_bidirectional_attention": True}),
     ("mixtral", {"sliding_window": 64}), ("mixtral", {"num_local_experts": 0}),
     ("qwen3_5", {"linear_value_head_dim": 64}), ("qwen3_5", {"attn_output_gate": False}),
     ("qwen3_5", {"layer_types": ["full_attention"] + ["linear_attention"] * 3}),
     ("qwen3_5_moe", {"layer_types": ["linear_attention"] * 4}),
     ("qwen3_next", {"norm_topk_prob": False}), ("qwen3_next", {"mlp_only_layers": [1]})],
)  # fmt: skip
def test_settings_that_gguf_cannot_say_are_refused(model, setting, tmp_path):
    folder = folder_of(model, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | setting))
    with pytest.raises(ModelFormatError, match=next(iter(setting))):
        convert(folder, tmp_path / "made.gguf", "f32", progress=False)
    assert not (tmp_path / "made.gguf").exists()
