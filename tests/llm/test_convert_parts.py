"""Tests of `npurt convert` on MXFP4 experts, and on the text part of a model with several parts."""

import json
import re

import numpy as np
import pytest

from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.families import FAMILIES
from npurt.llm.convert.checkpoint.keys import keys_of
from npurt.llm.convert.checkpoint.settings import DEFAULTS, CheckpointSettings
from npurt.llm.convert.folder import convert
from npurt.llm.decode.llama import Llama
from npurt.llm.file.gguf import GGUF
from tests.llm import checkpoints
from tests.llm.checkpoints import CONFIGS, change, folder_of, gguf_path, refused

# --- The experts of gpt-oss -----------------------------------------------------------------------

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
EXPERTS = "model.layers.0.mlp.experts"


def released(values):
    """Return the codes and exponents of a tensor in the layout of gpt-oss, and its values.

    A byte holds two neighbouring codes, the first in the low bits.  Each 32 codes have one
    exponent, which is stored with a bias of 127.
    """
    experts, rows, k = values
    rng = np.random.default_rng(rows)
    codes = rng.integers(0, 16, (experts, rows, k // 32, 32), np.uint8)
    exponents = rng.integers(117, 128, (experts, rows, k // 32), np.uint8)
    meant = E2M1[codes] * np.exp2(exponents.astype(np.float32) - 127)[..., None]
    return codes[..., 0::2] | codes[..., 1::2] << 4, exponents, meant.reshape(experts, rows, k)


def mxfp4(tensors):
    """Return the tensors of gpt-oss with layer 0's experts in MXFP4, and the experts' values."""
    found, meant = dict(tensors), {}
    for name, shape in (("gate_up_proj", (4, 192, 64)), ("down_proj", (4, 64, 96))):
        blocks, scales, meant[name] = released(shape)
        del found[f"{EXPERTS}.{name}"]
        found |= {f"{EXPERTS}.{name}_blocks": ("U8", blocks),
                  f"{EXPERTS}.{name}_scales": ("U8", scales)}  # fmt: skip
    return found, meant


@pytest.fixture
def quantised(tmp_path):
    folder = folder_of("gpt-oss", tmp_path / "m")
    tensors, meant = mxfp4(checkpoints.weights("gpt-oss"))
    (folder / "model.safetensors").write_bytes(checkpoints.encode(tensors))
    change(folder, "config.json", quantization_config={"quant_method": "mxfp4"})
    return folder, tensors, meant


@pytest.mark.parametrize("kind", ["bf16", "q8_0"])
def test_experts_in_mxfp4_keep_their_codes(tmp_path, quantised, kind):
    folder, _, meant = quantised
    convert(folder, tmp_path / "a.gguf", kind, progress=False)
    both = meant["gate_up_proj"]
    wanted = {"gate": both[:, 0::2], "up": both[:, 1::2], "down": meant["down_proj"]}
    with GGUF(tmp_path / "a.gguf") as found:
        for part, values in wanted.items():
            tensor = found[f"blk.0.ffn_{part}_exps.weight"]
            assert tensor.format.name == "mxfp4"
            assert (tensor.dequantize() == values).all()
        assert found["blk.1.ffn_up_exps.weight"].format.name == kind
        assert found["blk.0.attn_q.weight"].format.name == kind
        order = [int(m[1]) for name in found if (m := re.match(r"blk\.(\d+)\.", name))]
        assert order == sorted(order)
    with Llama(tmp_path / "a.gguf", "numpy", n_ctx=16) as llm:
        assert np.isfinite(llm.eval([1, 2, 3])).all()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("down_proj_scales", None, "has only"),
        ("down_proj_blocks", None, "has only"),
        ("down_proj_scales", ("U8", np.zeros((4, 64, 2), np.uint8)), "its scales"),
        ("down_proj_scales", ("U8", np.zeros((4, 64), np.uint8)), "has shape"),
        ("down_proj_scales", ("F32", np.zeros((4, 64, 3), np.float32)), "type F32, not U8"),
        ("down_proj", ("BF16", np.zeros((4, 96, 64), np.uint16)), "has only"),
        ("gate_up_proj_bias", None, "lacks"),
    ],
)
def test_experts_that_contradict_each_other_are_refused(tmp_path, quantised, name, value, says):
    folder, tensors, _ = quantised
    tensors = {k: v for k, v in tensors.items() if k != f"{EXPERTS}.{name}"}
    tensors |= {f"{EXPERTS}.{name}": value} if value else {}
    (folder / "model.safetensors").write_bytes(checkpoints.encode(tensors))
    refused(folder, tmp_path / "a.gguf", says)


def test_other_models_are_not_converted_from_mxfp4(tmp_path):
    folder = folder_of("qwen2", tmp_path / "m")
    change(folder, "config.json", quantization_config={"quant_method": "mxfp4"})
    refused(folder, tmp_path / "a.gguf", "quantization_config")


# --- Models of several parts ----------------------------------------------------------------------

WAYS = {  # prefixes of names in older and newer files
    "old": lambda name: f"language_model.{name}",
    "new": lambda name: name.replace("model.", "model.language_model.", 1),
}
VISION = {"old": "vision_tower.x.weight", "new": "model.multi_modal_projector.x.weight"}
WRAPPED = {"gemma3": "gemma3", "mistral3": "mistral3"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", WRAPPED)
def test_the_text_part_of_a_model_of_several_is_converted(tmp_path, model, way):
    folder = folder_of(model, tmp_path / "m")
    tensors = {WAYS[way](name): each for name, each in checkpoints.weights(model).items()}
    tensors[VISION[way]] = "F32", np.zeros((3, 5), np.float32)
    (folder / "model.safetensors").write_bytes(checkpoints.encode(tensors))
    inner = json.loads((folder / "config.json").read_text())
    outer = {
        "model_type": WRAPPED[model],
        "architectures": ["SomethingForConditionalGeneration"],
        "text_config": {k: v for k, v in inner.items() if k != "architectures"},
    }
    (folder / "config.json").write_text(json.dumps(outer))

    with pytest.warns(UserWarning, match="which are not converted"):
        convert(folder, tmp_path / "a.gguf", "bf16", progress=False)

    with GGUF(tmp_path / "a.gguf") as found, GGUF(gguf_path(model)) as known:
        assert set(found) == set(known)
        for name in known:
            assert (found[name].dequantize() == known[name].dequantize()).all()
        for key, value in known.metadata.items():
            if key.startswith(f"{found.architecture}."):
                assert np.all(found.metadata[key] == value), key


def test_defaults_that_a_text_part_leaves_out_are_those_of_its_class():
    """The settings are those of gemma-3-4b, which lists only values that differ from defaults."""
    sparse = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }  # fmt: skip
    keys = keys_of(FAMILIES["gemma3_text"], CheckpointSettings(DEFAULTS["gemma3_text"] | sparse))
    assert keys["gemma3.attention.head_count"] == 8
    assert keys["gemma3.attention.head_count_kv"] == 4
    assert keys["gemma3.attention.key_length"] == 256
    assert keys["gemma3.rope.freq_base"] == 1e6
    assert keys["gemma3.rope.scaling.factor"] == 8
    assert keys["gemma3.attention.sliding_window"] == 1024
    assert "gemma3.rope.freq_base_swa" not in keys


# --- Settings that GGUF cannot express ------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "values", "says"),
    [
        ("gemma2", {"query_pre_attn_scalar": 33}, "query_pre_attn_scalar is 33"),
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation is 'gelu'"),
        ("gemma2", {"layer_types": ["full_attention"] * 4}, "layer_types"),
        ("gemma2", {"attn_logit_softcapping": None}, "attn_logit_softcapping is None"),
        ("gemma3", {"layer_types": ["sliding_attention"] * 7}, "layer_types"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"sliding_window_pattern": 4}, "sliding_window_pattern"),
        ("gpt-oss", {"swiglu_limit": 5.0}, "swiglu_limit is 5"),
        ("gpt-oss", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "truncate"),
        ("mistral3", {"sliding_window": 64}, "sliding_window is 64"),
        (
            "mistral3",
            {"rope_parameters": CONFIGS["mistral3"]["rope_parameters"] | {"mscale": 2.0}},
            "mscale is 2.0",
        ),
    ],
)
def test_settings_that_gguf_cannot_say_are_refused(model, values, says):
    config = CONFIGS[model] | values
    with pytest.raises(ModelFormatError, match=says) as caught:
        keys_of(FAMILIES[config["model_type"]], CheckpointSettings(config))
    assert caught.value.remedy


def test_another_rotary_base_of_sliding_layers_is_said():
    rope = CONFIGS["gemma3"]["rope_parameters"]
    sliding = rope["sliding_attention"] | {"rope_theta": 5e4}
    for values in (
        {"rope_parameters": rope | {"sliding_attention": sliding}},
        {"rope_parameters": None, "rope_theta": 1e6, "rope_local_base_freq": 5e4},
    ):
        keys = keys_of(FAMILIES["gemma3_text"], CheckpointSettings(CONFIGS["gemma3"] | values))
        assert keys["gemma3.rope.freq_base_swa"] == 5e4
        assert keys["gemma3.rope.freq_base"] == 1e6
