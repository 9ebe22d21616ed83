"""Checkpoints of random numbers from a seed, of models that tests/data/models has no file of.

tests/data/checkpoints/seeded has their settings and transformers' logits, made by its script.
"""

import json
import math
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[1] / "data/checkpoints/seeded"
MODELS = ("gemma", "mixtral")
IDS = [(7 * i * i + 3 * i) % 400 for i in range(24)]


def config_of(model):
    """Return config.json as transformers saved it."""
    return json.loads((FOLDER / f"{model}.json").read_text())


def weights(config):
    """Return name -> (dtype, array) of a checkpoint, in transformers' names."""
    model, d, f = config["model_type"], config["hidden_size"], config["intermediate_size"]
    head = config["head_dim"] or d // config["num_attention_heads"]
    q, kv = (head * config[f"num_{name}_heads"] for name in ("attention", "key_value"))
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], d), "model.norm.weight": (d,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = config["vocab_size"], d
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes |= {f"{layer}{n}_layernorm.weight": (d,) for n in ("input", "post_attention")}
        sizes = {"q": (q, d), "k": (kv, d), "v": (kv, d), "o": (d, q)}
        shapes |= {f"{layer}self_attn.{n}_proj.weight": size for n, size in sizes.items()}
        if model == "mixtral":
            shapes[f"{layer}block_sparse_moe.gate.weight"] = config["num_local_experts"], d
            for expert in range(config["num_local_experts"]):
                start = f"{layer}block_sparse_moe.experts.{expert}."
                sizes = {"w1": (f, d), "w2": (d, f), "w3": (f, d)}
                shapes |= {f"{start}{n}.weight": size for n, size in sizes.items()}
        else:
            sizes = {"gate": (f, d), "up": (f, d), "down": (d, f)}
            shapes |= {f"{layer}mlp.{n}_proj.weight": size for n, size in sizes.items()}
    rng = np.random.default_rng(20261123)
    made = {}
    for name in sorted(shapes):
        numbers = rng.standard_normal(shapes[name]) / math.sqrt(shapes[name][-1])
        if len(shapes[name]) == 1 and model != "gemma":  # whose norms lack the 1
            numbers += 1
        made[name] = "F32", numbers.astype(np.float32)
    return made


def write(model, folder):
    """Write settings and weights of *model* to *folder*."""
    from tests.llm.checkpoints import encode  # whose packages the script does without

    config = config_of(model)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(encode(weights(config)))
