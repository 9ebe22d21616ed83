"""Make tiny random encoders, transformers' hidden states of them, and ids of their tokenizer.

    python tests/data/make/tiny_encoders.py OUT

Needs torch, transformers 5.23, tokenizers and gguf; npurt itself needs none of the first two.  Each
model gets a folder OUT/NAME: ``NAME-bf16.gguf`` (matrices bfloat16, vectors float32), ``ids.npy``,
``types.npy`` (the segment of each token) and ``hf_f32_hidden.npy`` [2, T, D]: the hidden states of
one forward pass in float32, with all tokens in the first segment, and with those segments.
Keys, names of tensors and layouts are those of llama.cpp's converter (conversion/bert.py, MIT).

The vocabulary is trained on tests/data/real/ppl_text.txt.  OUT/wordpiece.json has the ids of the
strings in tests/data/tokenizer/strings.json, by transformers' tokenizer in pure Python.
"""

import json
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from tiny_models import build, write_tensors
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModel
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

DATA = Path(__file__).parents[1]
VOCAB, TOKENS = 608, 40
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
COMMON = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 128, "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}  # fmt: skip
MODELS = {  # name: (transformers' model type, settings, pooling)
    "bert": ("bert", {"hidden_act": "gelu"}, gguf.PoolingType.CLS),
    "nomic-bert": (
        "nomic_bert",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
        gguf.PoolingType.MEAN,
    ),
}
TOP = {
    "embeddings.word_embeddings": "token_embd", "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
}  # fmt: skip
LAYER = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k",
    "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "attn_output_norm",
    "mlp.up_proj": "ffn_up", "mlp.gate_proj": "ffn_gate", "mlp.down_proj": "ffn_down",
    "post_mlp_layernorm": "layer_output_norm",
}  # fmt: skip


def vocabulary():
    """Return the tokens of a small uncased WordPiece vocabulary, by id."""
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer = normalizers.BertNormalizer(lowercase=True)
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=SPECIAL)
    trained.train([str(DATA / "real/ppl_text.txt")], trainer)
    ids = trained.get_vocab()
    return sorted(ids, key=ids.get)


def as_stored(token):
    """Return a token as the converter writes it: U+2581 marks the first piece of a word."""
    if token in SPECIAL:
        return token
    return token[2:] if token.startswith("##") else "\u2581" + token


def add_vocabulary(writer, tokens):
    """Write the keys of the tokenizer."""
    kinds = gguf.TokenType
    writer.add_token_type_count(COMMON["type_vocab_size"])
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list([as_stored(token) for token in tokens])
    writer.add_token_types(
        [kinds.CONTROL if token in SPECIAL else kinds.NORMAL for token in tokens]
    )
    writer.add_unk_token_id(tokens.index("[UNK]"))
    writer.add_sep_token_id(tokens.index("[SEP]"))
    writer.add_pad_token_id(tokens.index("[PAD]"))
    writer.add_bos_token_id(tokens.index("[CLS]"))
    writer.add_eos_token_id(tokens.index("[SEP]"))
    writer.add_mask_token_id(tokens.index("[MASK]"))


def renamed(key):
    """Return the name of a parameter in the file."""
    stem, _, suffix = key.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{suffix}"
    parts = stem.removeprefix("encoder.").split(".")
    return f"blk.{parts[1]}.{LAYER['.'.join(parts[2:])]}.{suffix}"


def tensors(model):
    """Return name -> array; q, k and v are one tensor in a nomic-bert."""
    found = {
        renamed(key): parameter.detach().numpy() for key, parameter in model.named_parameters()
    }
    if "blk.0.ffn_gate.weight" in found:
        for i in range(COMMON["num_hidden_layers"]):
            rows = [found.pop(f"blk.{i}.attn_{part}.weight") for part in "qkv"]
            found[f"blk.{i}.attn_qkv.weight"] = np.concatenate(rows)
    return found


def make(name, out, tokens):
    """Write the folder of one model."""
    kind, settings, pooling = MODELS[name]
    config = AutoConfig.for_model(kind, **{**COMMON, **settings})
    model = build(lambda: AutoModel.from_config(
        config, add_pooling_layer=False, dtype=torch.float32, attn_implementation="eager"
    ))  # fmt: skip
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.random.default_rng(1).integers(len(SPECIAL), VOCAB, TOKENS)
    types = (np.arange(TOKENS) >= TOKENS // 2).astype(np.int64)
    with torch.no_grad():
        hidden = [
            model(torch.tensor(ids[None]), token_type_ids=torch.tensor(given[None]))
            .last_hidden_state[0]
            .numpy()
            for given in (np.zeros_like(types), types)
        ]
    writer = gguf.GGUFWriter(folder / f"{name}-bf16.gguf", name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    if name == "nomic-bert":
        writer.add_rope_freq_base(settings["rope_parameters"]["rope_theta"])
    add_vocabulary(writer, tokens)
    write_tensors(writer, tensors(model).items())
    np.save(folder / "ids.npy", ids.astype(np.int32))
    np.save(folder / "types.npy", types.astype(np.int32))
    np.save(folder / "hf_f32_hidden.npy", np.stack(hidden))
    sys.stdout.write(f"{name}: hidden {hidden[0].shape}, std {hidden[0].std():.2f}\n")


def add_ids(out, tokens):
    """Write the ids of the tests' strings, with [CLS] and [SEP]."""
    texts = json.loads((DATA / "tokenizer/strings.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.txt"
        path.write_text("\n".join(tokens) + "\n")
        plain = BertTokenizerLegacy(str(path))
        ids = [plain(text, split_special_tokens=True)["input_ids"] for text in texts]
    (out / "wordpiece.json").write_text(json.dumps(ids))


if __name__ == "__main__":
    target, listed = Path(sys.argv[1]), vocabulary()
    for model_name in MODELS:
        make(model_name, target, listed)
    add_ids(target, listed)
