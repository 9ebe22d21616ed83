"""Tests of `npurt convert` on encoders: BERT and nomic-embed-text, with a WordPiece tokenizer.

The oracles are the files and the hidden states that tests/data/make/tiny_encoders.py made with
transformers.  Names and settings of the checkpoints are those that transformers 5.23.0 saves.
"""

import json

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

import npurt
from npurt.llm.convert.checkpoint.families import FAMILIES
from npurt.llm.convert.folder import convert
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.pooling import Pooling, read_pooling
from tests.llm import checkpoints, tiny
from tests.llm.checkpoints import LAYOUTS, change, encode, refused
from tests.llm.reference import nmse
from tests.llm.test_logits import FLOAT_NMSE

COMMON = {
    "vocab_size": 608, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 128, "type_vocab_size": 2,
    "layer_norm_eps": 1e-12, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
CONFIGS = {
    "bert": {
        **COMMON, "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu",
        "is_decoder": False, "tie_word_embeddings": True,
    },
    "nomic-bert": {
        **COMMON, "architectures": ["NomicBertModel"], "model_type": "nomic_bert",
        "hidden_act": "silu", "head_dim": 16,
        "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
    },
}  # fmt: skip
LAYERS = {"bert": "encoder.layer", "nomic-bert": "encoder.layers"}
POOLING = {"bert": "cls_token", "nomic-bert": "mean_tokens"}
SPECIAL = 5  # the first five tokens are markup
# The settings as nomic's code saves them: with the names of GPT-2.
PUBLISHED = {
    "n_embd": 64, "n_layer": 3, "n_head": 4, "n_inner": 96, "n_positions": 512,
    "max_trained_positions": 128, "layer_norm_epsilon": 1e-12, "activation_function": "swiglu",
    "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "prenorm": False,
    "model_type": "nomic_bert", "type_vocab_size": 2, "vocab_size": 608,
}  # fmt: skip


def known(model):
    return GGUF(tiny.path(model, "bf16"))


def weights(model):
    """Return the tensors of the checkpoint: name -> (dtype, array)."""
    family = FAMILIES[CONFIGS[model]["model_type"]]
    top = {ours: theirs for theirs, ours in reversed(family.top.items())}
    if model == "nomic-bert":
        top["token_embd_norm"] = "emb_ln"
    inner = {ours: theirs for theirs, ours in family.names.items()}
    found = {}
    with known(model) as file:
        for name in file:
            stem, _, suffix = name.rpartition(".")
            _, _, part = stem.split(".") if stem.startswith("blk.") else ("", "", "")
            theirs = f"{LAYERS[model]}.{stem.split('.')[1]}.{inner[part]}" if part else top[stem]
            tensor = file[name]
            found[f"{theirs}.{suffix}"] = LAYOUTS[tensor.dtype], np.array(tensor.blocks)
    if model == "bert":
        found["pooler.dense.weight"] = "F32", np.zeros((64, 64), np.float32)
    return found


def tokenizer(model):
    with known(model) as file:
        stored = list(file.metadata["tokenizer.ggml.tokens"])
    words = [t if i < SPECIAL else t.removeprefix("\u2581") if t[0] == "\u2581" else f"##{t}"
             for i, t in enumerate(stored)]  # fmt: skip
    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)},
                                      unk_token="[UNK]", max_input_chars_per_word=100))  # fmt: skip
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens([AddedToken(word, special=True) for word in words[:SPECIAL]])
    return made


def folder_of(model, folder, tensors=None):
    (folder / "config.json").write_text(json.dumps(CONFIGS[model]))
    (folder / "model.safetensors").write_bytes(encode(tensors or weights(model)))
    tokenizer(model).save(str(folder / "tokenizer.json"))
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name == POOLING[model] for name in POOLING.values()}
    (folder / "1_Pooling/config.json").write_text(
        json.dumps({"word_embedding_dimension": 64} | modes)
    )
    return folder


def test_a_missing_embedding_is_named(tmp_path):
    tensors = {name: each for name, each in weights("bert").items() if "word_emb" not in name}
    folder = folder_of("bert", tmp_path, tensors)
    says = r"the checkpoint has no embeddings\.word_embeddings\.weight"
    refused(folder, tmp_path / "a.gguf", says)


@pytest.mark.parametrize("model", CONFIGS)
def test_the_file_is_the_known_one_and_computes_what_transformers_does(model, tmp_path):
    convert(folder_of(model, tmp_path), tmp_path / "made.gguf", "bf16", progress=False)
    with GGUF(tmp_path / "made.gguf") as found, known(model) as file:
        assert set(found) == set(file)
        assert all((found[n].dequantize() == file[n].dequantize()).all() for n in file)
        for key, value in file.metadata.items():
            if not key.startswith("general."):
                assert np.all(found.metadata[key] == value), key
    ids, wanted = tiny.array(model, "ids").tolist(), tiny.array(model, "hf_f32_hidden")
    texts = json.loads((tiny.MODELS.parent / "tokenizer/strings.json").read_text())
    by_transformers = json.loads((tiny.MODELS.parent / "tokenizer/wordpiece.json").read_text())
    with npurt.Llama(tmp_path / "made.gguf", "numpy") as llm:
        states = llm.embed([ids], normalize=False, pooling="none")[0]
        assert nmse(states, wanted[0]) < FLOAT_NMSE
        for text, known_ids in zip(texts, by_transformers, strict=True):
            assert [*llm.tokenizer.encode(text, special=False), llm.tokenizer.eos] == known_ids


def test_the_first_names_of_bert_are_understood(tmp_path):
    """Names as in bert-base-uncased are converted: a prefix, gamma, beta and a training head."""
    tensors = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): each
        for name, each in weights("bert").items()
    }
    tensors["cls.predictions.bias"] = "F32", np.zeros(608, np.float32)
    folder = folder_of("bert", tmp_path, tensors)
    change(folder, "config.json", architectures=["BertForMaskedLM"])
    convert(folder, tmp_path / "made.gguf", "bf16", progress=False)
    with GGUF(tmp_path / "made.gguf") as found, known("bert") as file:
        assert set(found) == set(file)


def test_the_settings_of_nomics_own_code_mean_the_same(tmp_path):
    folder = folder_of("nomic-bert", tmp_path)
    (folder / "config.json").write_text(json.dumps(PUBLISHED))
    convert(folder, tmp_path / "made.gguf", "bf16", progress=False)
    with GGUF(tmp_path / "made.gguf") as found, known("nomic-bert") as file:
        for key, value in file.metadata.items():
            if key.startswith("nomic-bert."):
                assert found.metadata[key] == value, key


def test_an_embedding_model_of_a_decoder_says_its_pooling(tmp_path):
    """The tensors have the names of a model without an output head, such as Qwen3-Embedding."""
    folder = checkpoints.folder_of("qwen3", tmp_path / "m")
    tensors = checkpoints.weights("qwen3")
    bare = {name.removeprefix("model."): each for name, each in tensors.items()}
    (folder / "model.safetensors").write_bytes(encode(bare))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_lasttoken": true}')
    change(folder, "config.json", architectures=["Qwen3Model"])
    convert(folder, tmp_path / "made.gguf", "f32", progress=False)
    with GGUF(tmp_path / "made.gguf") as found, GGUF(checkpoints.gguf_path("qwen3")) as file:
        assert set(found) == set(file)
        assert read_pooling(found.metadata) == Pooling.LAST


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("config.json", {"architectures": ["BertForSequenceClassification"]}, "does not convert"),
        ("config.json", {"hidden_act": "relu"}, "hidden_act"),
        ("config.json", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("config.json", {"is_decoder": True}, "is_decoder"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True}, "pooling_mode"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": False,
                                   "pooling_mode_max_tokens": True}, "pooling_mode_max"),
        ("tokenizer.json", {"normalizer": None}, "normalises text"),
        ("tokenizer.json", {"pre_tokenizer": {"type": "Whitespace"}}, "Whitespace"),
    ],
)  # fmt: skip
def test_what_gguf_cannot_say_is_refused(name, values, says, tmp_path):
    folder = folder_of("bert", tmp_path)
    change(folder, name, **values)
    refused(folder, tmp_path / "a.gguf", says)
