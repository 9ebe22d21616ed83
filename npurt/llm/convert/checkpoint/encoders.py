"""Convert encoders, which compute embeddings: BERT and nomic-embed-text.

`renamed` maps the names of their layers to the decoders' form ``model.layers.N``.
Sources: transformers 5.23 models/bert, models/nomic_bert, conversion_mapping.py, Apache-2.0 (names;
settings of nomic's code, which have the names of GPT-2's); llama.cpp conversion/bert.py, MIT.
"""

import re
from typing import Any

from npurt.llm.convert.checkpoint.settings import CheckpointSettings

TOP = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "emb_ln": "token_embd_norm",
}
BERT = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
NOMIC = {
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "norm1": "attn_output_norm",
    "mlp.fc11": "ffn_up",
    "mlp.fc12": "ffn_gate",
    "mlp.fc2": "ffn_down",
    "norm2": "layer_output_norm",
}
# Tensors that embeddings do not need: training heads, and a table of the numbers 0, 1, 2, ...
UNUSED = ("pooler.", "cls.", "embeddings.position_ids")
_OLD = {"gamma": "weight", "beta": "bias"}


def renamed(name: str) -> str:
    """Return the name of a tensor in the decoders' form, or "" for an unused tensor."""
    inner = name.removeprefix("bert.")
    if inner.startswith(UNUSED):
        return ""
    stem, _, suffix = inner.rpartition(".")
    stem = re.sub(r"^encoder\.layers?\.", "model.layers.", stem)
    return f"{stem}.{_OLD.get(suffix, suffix)}"


def encoder_keys(settings: CheckpointSettings) -> dict[str, Any]:
    """Return the metadata keys of an encoder."""
    settings.require("is_decoder", None, False)
    settings.require("position_embedding_type", None, "absolute")
    return {
        "block_count": settings.layers,
        "context_length": settings.integer("max_position_embeddings"),
        "embedding_length": settings.integer("hidden_size"),
        "feed_forward_length": settings.integer("intermediate_size"),
        "attention.head_count": settings.integer("num_attention_heads"),
        "attention.layer_norm_epsilon": settings.number("layer_norm_eps", 1e-12),
        "attention.causal": False,
    }


def nomic_keys(settings: CheckpointSettings) -> dict[str, Any]:
    """Return the metadata keys that nomic-embed-text has in addition to BERT's."""
    rope = settings.get("rope_parameters") or {}
    settings.require("rotary_emb_fraction", None, 1.0)
    settings.require("rotary_emb_interleaved", None, False)
    settings.require("prenorm", None, False)
    settings.require("use_rms_norm", None, False)
    base = rope.get("rope_theta") or settings.number("rotary_emb_base", 1000.0)
    trained = settings.integer("max_trained_positions", 1 << 30)
    context = min(trained, settings.integer("max_position_embeddings"))
    return {"context_length": context, "rope.freq_base": float(base)}
