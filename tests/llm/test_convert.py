"""`npurt convert`: a checkpoint becomes the file that llama.cpp's converter makes of it.

Oracles: the files of tests/data/models, which llama.cpp's converter (or gguf-py, by the script
there) made, and transformers' logits of the same models.
"""

import json
import struct

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.errors import ModelFormatError, NpurtError
from npurt.llm.arch.reading import describe
from npurt.llm.convert import safetensors
from npurt.llm.convert.families import FAMILIES, TOP
from npurt.llm.convert.folder import convert, interleaved
from npurt.llm.convert.keys import keys_of, rope_tables
from npurt.llm.convert.settings import Settings
from npurt.llm.convert.types import type_of
from npurt.llm.convert.vocabulary import vocabulary_of
from npurt.llm.decode.model import Llama
from npurt.llm.file.gguf import GGUF
from npurt.llm.text.tokenizer import Tokenizer
from npurt.quant.encode import quantize
from tests.llm import checkpoints, tiny
from tests.llm.checkpoints import CONFIGS, LLAMA3, QWEN2, folder_of, gguf_path
from tests.llm.reference import nmse
from tests.llm.test_logits import FLOAT_NMSE

MODELS = sorted(CONFIGS)
STRINGS = json.loads((tiny.MODELS.parent / "tokenizer/strings.json").read_text())
# Keys that only one of the two writers writes; what they say follows from the others.
OURS = ("vocab_size", "key_length", "value_length", "dimension_count", "add_bos_token",
        "add_eos_token", "olmo2.attention.sliding_window_pattern")  # fmt: skip
GENERAL = "general."


def kind_of(model):
    return gguf_path(model).stem.rpartition("-")[2]


@pytest.fixture(params=MODELS)
def made(request, tmp_path):
    """Yield a model's name and the file that was made of its checkpoint."""
    model = request.param
    target = tmp_path / "made.gguf"
    convert(folder_of(model, tmp_path / model), target, kind_of(model), progress=False)
    return model, target


def test_tensors_and_keys_are_those_of_the_known_file(made):
    model, path = made
    with GGUF(path) as found, GGUF(gguf_path(model)) as known:
        assert set(found) == set(known)
        for name in known:
            assert found[name].shape == known[name].shape
            assert (found[name].dequantize() == known[name].dequantize()).all()
        for key, value in known.metadata.items():
            if not key.startswith(GENERAL):
                assert np.all(found.metadata[key] == value), key
        extra = found.metadata.keys() - known.metadata.keys()
        assert not [key for key in extra if not key.startswith(GENERAL) and not key.endswith(OURS)]
        assert found.architecture == known.architecture


def test_logits_are_those_of_transformers(made):
    model, path = made
    ids = tiny.ids(model, 40)
    with Llama(path, "numpy", n_ctx=64, kv_type="f32") as llm:
        y = llm.eval(ids)
    assert nmse(y, tiny.array(model, "hf_f32_prefill")[:40]) < FLOAT_NMSE


def test_text_is_encoded_as_by_the_library(tmp_path):
    for model in ("llama3", "qwen2"):
        convert(folder_of(model, tmp_path / model), tmp_path / "a.gguf", "f16", progress=False)
        with GGUF(tmp_path / "a.gguf") as file:
            ours = Tokenizer.from_gguf(file.metadata)
        theirs = checkpoints.tokenizer(model)
        for text in STRINGS:
            assert ours.encode(text) == theirs.encode(text).ids, text


# --- Rows of q and k ------------------------------------------------------------------------------


def test_the_rows_of_a_head_of_eight_are_interleaved():
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    assert interleaved(16, 2).tolist() == order + [8 + i for i in order]


@given(st.integers(1, 8), st.integers(1, 16))
def test_rotating_pairs_after_is_rotating_halves_before(heads, half):
    """The product of q and k after rotation is the same, whichever elements rotate together."""
    rng = np.random.default_rng(heads * 100 + half)
    q, k = rng.standard_normal((2, heads, 2 * half))
    angles = rng.uniform(0, 6, (2, half))
    a, b = [each[..., :half] + 1j * each[..., half:] for each in (q, k)]  # halves
    expected = (a * np.exp(1j * angles[0]) * np.conj(b * np.exp(1j * angles[1]))).real.sum(-1)

    order = interleaved(heads * 2 * half, heads)
    q, k = (each.reshape(-1)[order].reshape(heads, half, 2) for each in (q, k))
    a, b = [each[..., 0] + 1j * each[..., 1] for each in (q, k)]  # pairs
    found = (a * np.exp(1j * angles[0]) * np.conj(b * np.exp(1j * angles[1]))).real.sum(-1)

    assert np.allclose(found, expected, rtol=0, atol=1e-12 * half * 40)


def test_the_weights_of_the_checkpoint_are_those_that_transformers_rotates_by_halves(tmp_path):
    """Without permutation, as a model that rotates halves, they give transformers' logits.

    So the folders of these tests have the rows in transformers' order.
    """
    file = tiny.read(gguf_path("llama3"))
    for layer in range(3):
        for part, heads in (("attn_q", 4), ("attn_k", 2)):
            name = f"blk.{layer}.{part}.weight"
            with GGUF(gguf_path("llama3")) as known:
                rows = checkpoints.halves(known[name].dequantize(), heads)
            file = tiny.with_tensor(file, name, rows)
    keys = [(k.replace("llama.", "qwen2."), t, v) for k, t, v in file.keys]
    keys = [(k, t, "qwen2" if k == "general.architecture" else v) for k, t, v in keys]
    path = tiny.write(file.but(keys=keys), tmp_path)
    with Llama(path, "numpy", n_ctx=64, kv_type="f32") as llm:
        y = llm.eval(tiny.ids("llama3", 40))
    assert nmse(y, tiny.array("llama3", "hf_f32_prefill")[:40]) < FLOAT_NMSE


# --- Names and keys -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_names_are_those_of_gguf_py(kind):
    family = FAMILIES[kind]
    enums = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    theirs = gguf.get_tensor_name_map(enums[family.arch], 1)
    for name, ours in family.names.items():
        stem = f"model.layers.0.{name}".replace("experts.*.", "experts.")
        assert theirs.get_name(stem) in (f"blk.0.{ours}", None), name
    for name, ours in TOP.items():
        assert theirs.get_name(name) in (ours, None), name


@pytest.mark.parametrize("model", MODELS)
def test_settings_of_transformers_4_mean_the_same(model):
    new = CONFIGS[model]
    rope = next((v for v in new["rope_parameters"].values() if isinstance(v, dict)), None)
    rope = dict(rope or new["rope_parameters"])
    old = {k: v for k, v in new.items() if k != "rope_parameters"}
    old["rope_theta"] = rope.pop("rope_theta")
    old["partial_rotary_factor"] = rope.pop("partial_rotary_factor", 1.0)
    old["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    family = FAMILIES[new["model_type"]]

    for config in (old, old | {"rope_scaling": rope | {"type": rope["rope_type"]}}):
        found, expected = keys_of(family, Settings(config)), keys_of(family, Settings(new))
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], expected[key]) for key in expected)
        tables = rope_tables(Settings(config))
        for name, values in rope_tables(Settings(new)).items():
            assert (tables[name] == values).all()


def test_yarn_says_what_it_needs():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    config = CONFIGS["qwen3"] | {"rope_parameters": {"rope_theta": 1e6, **yarn}}
    keys = keys_of(FAMILIES["qwen3"], Settings(config))
    assert keys["qwen3.rope.scaling.type"] == "yarn"
    assert keys["qwen3.rope.scaling.factor"] == 4.0
    assert keys["qwen3.rope.scaling.original_context_length"] == 128


# --- Tokenizers -----------------------------------------------------------------------------------

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
DIGITS = {"type": "Digits", "individual_digits": True}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}


@pytest.mark.parametrize(
    ("steps", "ignoring", "arch", "name"),
    [
        ([BYTES], False, "llama", "gpt-2"),
        ([BYTES], False, "exaone4", "exaone4"),
        ([DIGITS, BYTES | {"use_regex": True}], False, "llama", "smollm"),
        ([split(LLAMA3), BYTES | {"use_regex": False}], True, "llama", "llama-bpe"),
        ([split(LLAMA3), BYTES | {"use_regex": False}], True, "lfm2", "lfm2"),
        ([split(LLAMA3), BYTES | {"use_regex": False}], False, "glm4", "glm4"),
        ([split(QWEN2), BYTES | {"use_regex": False}], False, "qwen2", "qwen2"),
        (
            [
                split(
                    QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
                        r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
                    )
                ),
                BYTES | {"use_regex": False},
            ],
            False, "qwen3", "qwen35",
        ),
    ],
)  # fmt: skip
def test_the_pre_tokenizer_is_named_as_llama_cpp_does(tmp_path, steps, ignoring, arch, name):
    folder = folder_of("qwen2", tmp_path / "m")
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["ignore_merges"] = ignoring
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    path.write_text(json.dumps(content))
    assert vocabulary_of(folder, arch, 608)["tokenizer.ggml.pre"] == name


def test_special_tokens_come_from_every_place_that_may_say_them(tmp_path):
    folder = folder_of("llama3", tmp_path / "m")
    known = vocabulary_of(folder, "llama", 608)
    assert known["tokenizer.ggml.add_bos_token"] is True  # the template of the post-processor
    assert known["tokenizer.ggml.add_eos_token"] is False
    assert (known["tokenizer.ggml.bos_token_id"], known["tokenizer.ggml.eos_token_id"]) == (
        594,
        599,
    )
    changed(folder, "tokenizer_config.json", eos_token={"content": "[PAD600]"}, bos_token=...)
    changed(folder, "config.json", bos_token_id=595, eos_token_id=[596, 597])
    changed(folder, "tokenizer_config.json", add_bos_token=False)

    keys = vocabulary_of(folder, "llama", 608)

    assert keys["tokenizer.ggml.eos_token_id"] == 600
    assert keys["tokenizer.ggml.bos_token_id"] == 595
    assert keys["tokenizer.ggml.eot_token_id"] in (596, 597)
    assert keys["tokenizer.ggml.add_bos_token"] is False


def test_the_template_in_a_file_of_its_own_is_newer(tmp_path):
    folder = folder_of("llama3", tmp_path / "m")
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    changed(folder, "tokenizer_config.json", chat_template=named)
    assert vocabulary_of(folder, "llama", 608)["tokenizer.chat_template"] == "D"
    (folder / "chat_template.jinja").write_text("J")
    assert vocabulary_of(folder, "llama", 608)["tokenizer.chat_template"] == "J"


def test_more_ids_than_rows_are_refused(tmp_path):
    folder = folder_of("llama3", tmp_path / "m")
    with pytest.raises(ModelFormatError, match="ids up to 599, the embedding 599 rows"):
        vocabulary_of(folder, "llama", 599)


# --- Types and files ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0", "q4_k"])
def test_quantised_weights_are_those_of_the_encoder(tmp_path, kind):
    convert(folder_of("llama3", tmp_path / "m"), tmp_path / "a.gguf", kind, progress=False)
    with GGUF(tmp_path / "a.gguf") as found, GGUF(gguf_path("llama3")) as known:
        for name in known:
            values = known[name].dequantize()
            fmt = type_of(name, values.shape, kind, tied=False)
            assert found[name].format is fmt
            assert found[name].blocks.tobytes() == quantize(values, fmt).tobytes()


def test_weights_in_several_files_are_one_model(tmp_path):
    folder = folder_of("qwen3", tmp_path / "m", files=3)
    convert(folder, tmp_path / "a.gguf", "f32", progress=False)
    with GGUF(tmp_path / "a.gguf") as found, GGUF(gguf_path("qwen3")) as known:
        assert all((found[n].dequantize() == known[n].dequantize()).all() for n in known)


def test_the_bytes_of_a_small_safetensors_file_are_read(tmp_path):
    head = b'{"x":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}'
    data = struct.pack("<Q", len(head)) + head + bytes.fromhex("803f00c0")
    (tmp_path / "model.safetensors").write_bytes(data)
    (stored,) = safetensors.read(tmp_path).values()
    assert stored.tensor().dequantize().tolist() == [[1.0, -2.0]]


def test_rows_without_a_token_are_padding(tmp_path):
    convert(folder_of("qwen2", tmp_path / "m"), tmp_path / "a.gguf", "f16", progress=False)
    with GGUF(tmp_path / "a.gguf") as file:
        tokens = Tokenizer.from_gguf(file.metadata)
        assert file.metadata["tokenizer.ggml.tokens"][607] == "[PAD607]"
        assert 607 in tokens.never_sampled


# --- Refusals -------------------------------------------------------------------------------------


def changed(folder, name, **values):
    path = folder / name
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))


def refused(folder, target, says, kind="f16"):
    with pytest.raises(NpurtError, match=says) as caught:
        convert(folder, target, kind, progress=False)
    assert caught.value.remedy
    assert not target.exists()
    return caught.value


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
        ({"tie_word_embeddings": True, "intermediate_size": 100}, "shape"),
        ({"rms_norm_eps": None}, "norm_eps is None"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "factor"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "mscale"),
    ],
)
def test_a_model_that_gguf_cannot_express_is_refused(tmp_path, values, says):
    folder = folder_of("llama3", tmp_path / "m")
    changed(folder, "config.json", **values)
    refused(folder, tmp_path / "a.gguf", says)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_that_is_missing_or_damaged_is_named(tmp_path, name):
    folder = folder_of("qwen2", tmp_path / "m")
    (folder / name).write_bytes(b"\xff{")
    refused(folder, tmp_path / "a.gguf", name)
    (folder / name).unlink()
    refused(folder, tmp_path / "a.gguf", name)


def test_an_output_matrix_that_the_embedding_stands_for_is_left_out(tmp_path):
    folder = folder_of("qwen2", tmp_path / "m")
    tensors = checkpoints.weights("qwen2")
    head = {"lm_head.weight": ("F32", np.ones((608, 128), np.float32))}
    (folder / "model.safetensors").write_bytes(checkpoints.encode(tensors | head))
    convert(folder, tmp_path / "a.gguf", "f32", progress=False)
    with GGUF(tmp_path / "a.gguf") as file:
        assert "output.weight" not in file
    changed(folder, "config.json", tie_word_embeddings=False)
    convert(folder, tmp_path / "a.gguf", "f32", progress=False)
    with GGUF(tmp_path / "a.gguf") as file:
        assert (file["output.weight"].dequantize() == 1).all()


def test_an_output_matrix_that_is_missing_is_named(tmp_path):
    folder = folder_of("qwen2", tmp_path / "m")
    changed(folder, "config.json", tie_word_embeddings=False)
    refused(folder, tmp_path / "a.gguf", "lm_head")


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
    changed(folder, "model.safetensors.index.json", weight_map={"x": name})
    refused(folder, tmp_path / "a.gguf", "index")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "Unigram"),
        ({"normalizer": {"type": "Lowercase"}}, "Lowercase"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "pre-tokenizer"),
        ({"model": 3}, "not as it must be"),
    ],
)
def test_a_tokenizer_that_npurt_does_not_know_is_refused(tmp_path, values, says):
    folder = folder_of("qwen2", tmp_path / "m")
    changed(folder, "tokenizer.json", **values)
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


# --- Folders of strangers -------------------------------------------------------------------------

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
    """Return the paths to all values within *value*; of long lists, those of the first few."""
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
