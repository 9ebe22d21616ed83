"""Tests of `npurt convert` on checkpoints that are damaged or that GGUF cannot express."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.errors import ModelFormatError, NpurtError
from npurt.llm.arch.reading import describe
from npurt.llm.convert.checkpoint import safetensors
from npurt.llm.convert.folder import convert
from npurt.llm.file.gguf import GGUF
from npurt.llm.text.tokenizer import Tokenizer
from tests.llm import checkpoints
from tests.llm.checkpoints import change, folder_of, refused

# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model_type": "t5"}, "of type 't5'"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "SequenceClassification"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"sliding_window": 128}, "sliding_window is 128"),
        ({"num_hidden_layers": 2}, r"blk\.2"),
        ({"num_hidden_layers": 4}, r"lacks blk\.3"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3'"),
        ({"num_attention_heads": 8}, "shape"),
        ({"intermediate_size": 100}, "shape"),
        ({"rms_norm_eps": None}, "norm_eps is None"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "factor"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "mscale"),
    ],
)
def test_a_model_that_gguf_cannot_express_is_refused(tmp_path, values, says):
    folder = folder_of("llama3", tmp_path / "m")
    change(folder, "config.json", **values)
    refused(folder, tmp_path / "a.gguf", says)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_that_is_missing_or_damaged_is_named(tmp_path, name):
    folder = folder_of("qwen2", tmp_path / "m")
    (folder / name).write_bytes(b"\xff{")
    refused(folder, tmp_path / "a.gguf", name)
    (folder / name).unlink()
    refused(folder, tmp_path / "a.gguf", name)


def test_what_is_no_folder_is_refused(tmp_path):
    refused(tmp_path / "none", tmp_path / "a.gguf", "no folder")


def test_a_tensor_that_is_unknown_missing_or_of_another_type_is_named(tmp_path):
    folder = folder_of("qwen2", tmp_path / "m")
    path, tensors = folder / "model.safetensors", checkpoints.weights("qwen2")
    lora = {"base_model.model.x.lora_A.weight": ("F32", np.zeros((2, 2), np.float32))}
    path.write_bytes(checkpoints.encode(tensors | lora))
    refused(folder, tmp_path / "a.gguf", "lora_A")
    name = "model.layers.1.mlp.up_proj.weight"
    path.write_bytes(checkpoints.encode({k: v for k, v in tensors.items() if k != name}))
    refused(folder, tmp_path / "a.gguf", r"blk\.1\.ffn_up")
    codes = ("I8", tensors[name][1].astype(np.int8))
    path.write_bytes(checkpoints.encode(tensors | {name: codes}))
    refused(folder, tmp_path / "a.gguf", "type I8")


def test_a_file_of_the_index_that_is_missing_is_named(tmp_path):
    folder = folder_of("qwen2", tmp_path / "m", files=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(folder, tmp_path / "a.gguf", "model-00002-of-00002")


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/b", ".."])
def test_an_index_cannot_lead_out_of_the_folder(tmp_path, name):
    folder = folder_of("qwen2", tmp_path / "m", files=2)
    change(folder, "model.safetensors.index.json", weight_map={"x": name})
    refused(folder, tmp_path / "a.gguf", "index")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "Unigram"),
        ({"normalizer": {"type": "Lowercase"}}, "Lowercase"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "pre-tokenizer"),
        ({"model": 3}, "has a missing or wrong value"),
    ],
)
def test_a_tokenizer_that_npurt_does_not_know_is_refused(tmp_path, values, says):
    folder = folder_of("qwen2", tmp_path / "m")
    change(folder, "tokenizer.json", **values)
    refused(folder, tmp_path / "a.gguf", says)


def test_a_pattern_that_nobody_named_is_refused_and_shown(tmp_path):
    folder = folder_of("qwen2", tmp_path / "m")
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace("'ll", "'lll"))
    assert "convert_hf_to_gguf" in refused(folder, tmp_path / "a.gguf", "'lll").remedy


@given(st.binary(max_size=200))
def test_bytes_that_are_no_safetensors_are_refused(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "bytes"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelFormatError):
        safetensors.read(folder)


@given(
    st.fixed_dictionaries({
        "dtype": st.sampled_from(["F32", "BF16", "I8", 3, None]),
        "shape": st.lists(st.integers(-1, 5) | st.just(2**62) | st.none(), max_size=3),
        "data_offsets": st.just([0, 8])
        | st.lists(st.integers(-2, 10) | st.text(max_size=1), max_size=3),
    })
)  # fmt: skip
def test_a_table_never_leads_out_of_the_data(tmp_path_factory, entry):
    head = json.dumps({"x": entry}).encode()
    folder = tmp_path_factory.getbasetemp() / "table"
    folder.mkdir(exist_ok=True)
    data = len(head).to_bytes(8, "little") + head + bytes(8)
    (folder / "model.safetensors").write_bytes(data)
    try:
        stored = safetensors.read(folder)["x"]
    except ModelFormatError:
        return
    start, stop = entry["data_offsets"]
    assert 0 <= start <= stop <= 8
    assert len(stored.data) == stop - start


# --- Arbitrary values -----------------------------------------------------------------------------

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**40),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.integers(-1, 3) | st.text(max_size=2), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=2), max_size=2),
)


def places(value, path=()):
    """Return the paths to the values within *value*; in long lists, only to the first four."""
    found = [path] if path else []
    if isinstance(value, dict):
        found += [p for key in list(value)[:40] for p in places(value[key], (*path, key))]
    elif isinstance(value, list):
        found += [p for i, each in enumerate(value[:4]) for p in places(each, (*path, i))]
    return found


def with_value(value, path, new):
    """Return a copy of *value* that has *new* at *path*."""
    if not path:
        return new
    head, *rest = path
    copy = value.copy()
    copy[head] = with_value(value[head], rest, new)
    return copy


@pytest.mark.parametrize(
    ("model", "name"),
    [("llama3", "config.json"), ("phi3-longrope", "config.json"), ("lfm2", "config.json"),
     ("qwen3moe", "config.json"), ("exaone4", "config.json"), ("gemma3", "config.json"),
     ("gpt-oss", "config.json"), ("mistral3", "config.json"), ("llama3", "tokenizer.json"),
     ("llama3", "tokenizer_config.json")],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:config.json says that the output matrix is tied")
@settings(max_examples=40)
@given(data=st.data())
def test_whatever_is_in_a_file_it_is_converted_or_refused(tmp_path_factory, model, name, data):
    folder = tmp_path_factory.getbasetemp() / f"odd-{model}"
    if not folder.exists():
        folder_of(model, folder)
    good = json.loads((folder / name).read_text())
    path = data.draw(st.sampled_from(places(good)))
    (folder / name).write_text(json.dumps(with_value(good, path, data.draw(ODD))))
    target = folder / "made.gguf"
    target.unlink(missing_ok=True)
    refusal = None
    try:
        convert(folder, target, "f16", progress=False)
    except NpurtError as error:
        refusal = error
    finally:
        (folder / name).write_text(json.dumps(good))
    if refusal:
        assert refusal.remedy
        assert not target.exists()
        return
    with GGUF(target) as file:
        Tokenizer.from_gguf(file.metadata)
        for n_ctx in (32, 512):
            describe(file).graph(n_ctx)
