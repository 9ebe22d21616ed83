"""Tests of `npurt convert`: a checkpoint becomes the file that llama.cpp's converter makes of it.

Oracles: the files of tests/data/models, which llama.cpp's converter or a script with gguf-py made,
and transformers' logits of the same models.
"""

import json
import struct

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import ModelFormatError
from npurt.llm.arch.families import ARCHITECTURES
from npurt.llm.convert.checkpoint import safetensors
from npurt.llm.convert.checkpoint.families import FAMILIES, TOP
from npurt.llm.convert.checkpoint.keys import keys_of, rope_tables
from npurt.llm.convert.checkpoint.orders import interleaved
from npurt.llm.convert.checkpoint.settings import CheckpointSettings
from npurt.llm.convert.folder import convert
from npurt.llm.convert.tokenizer.vocabulary import vocabulary_of
from npurt.llm.convert.types import type_of
from npurt.llm.decode.llama import Llama
from npurt.llm.file.gguf import GGUF
from npurt.llm.text.tokenizer import Tokenizer
from npurt.quant.encode import quantize
from tests.llm import checkpoints, tiny
from tests.llm.checkpoints import CONFIGS, LLAMA3, QWEN2, change, folder_of, gguf_path
from tests.llm.reference import nmse
from tests.llm.test_logits import FLOAT_NMSE

MODELS = sorted(CONFIGS)
STRINGS = json.loads((tiny.MODELS.parent / "tokenizer/strings.json").read_text())
# Keys that only one of the two writers writes; their values follow from the other keys.
OURS = ("vocab_size", "key_length", "value_length", "dimension_count", "add_bos_token",
        "add_eos_token", "olmo2.attention.sliding_window_pattern")  # fmt: skip
GENERAL = "general."


def kind_of(model):
    return gguf_path(model).stem.rpartition("-")[2]


@pytest.fixture(params=MODELS)
def made(request, tmp_path):
    """Return a model's name and the file that was made of its checkpoint."""
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
    """A model that rotates halves gives transformers' logits with the rows of the checkpoint.

    This shows that the folders of these tests have the rows in transformers' order.
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


def test_every_architecture_that_runs_is_converted():
    assert {family.arch for family in FAMILIES.values()} == set(ARCHITECTURES)


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
        found, expected = (
            keys_of(family, CheckpointSettings(config)),
            keys_of(family, CheckpointSettings(new)),
        )
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], expected[key]) for key in expected)
        tables = rope_tables(CheckpointSettings(config))
        for name, values in rope_tables(CheckpointSettings(new)).items():
            assert (tables[name] == values).all()


def test_yarn_says_what_it_needs():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    config = CONFIGS["qwen3"] | {"rope_parameters": {"rope_theta": 1e6, **yarn}}
    keys = keys_of(FAMILIES["qwen3"], CheckpointSettings(config))
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
    assert known["tokenizer.ggml.add_bos_token"] is True  # from the post-processor
    assert known["tokenizer.ggml.add_eos_token"] is False
    assert (known["tokenizer.ggml.bos_token_id"], known["tokenizer.ggml.eos_token_id"]) == (
        594,
        599,
    )
    change(folder, "tokenizer_config.json", eos_token={"content": "[PAD600]"}, bos_token=...)
    change(folder, "config.json", bos_token_id=595, eos_token_id=[596, 597])
    change(folder, "tokenizer_config.json", add_bos_token=False)

    keys = vocabulary_of(folder, "llama", 608)

    assert keys["tokenizer.ggml.eos_token_id"] == 600
    assert keys["tokenizer.ggml.bos_token_id"] == 595
    assert keys["tokenizer.ggml.eot_token_id"] in (596, 597)
    assert keys["tokenizer.ggml.add_bos_token"] is False


def test_the_template_in_a_file_of_its_own_is_newer(tmp_path):
    folder = folder_of("llama3", tmp_path / "m")
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    change(folder, "tokenizer_config.json", chat_template=named)
    assert vocabulary_of(folder, "llama", 608)["tokenizer.chat_template"] == "D"
    (folder / "chat_template.jinja").write_text("J")
    assert vocabulary_of(folder, "llama", 608)["tokenizer.chat_template"] == "J"


def test_more_ids_than_rows_are_refused(tmp_path):
    folder = folder_of("llama3", tmp_path / "m")
    with pytest.raises(ModelFormatError, match="ids up to 599, but the embedding has 599 rows"):
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
