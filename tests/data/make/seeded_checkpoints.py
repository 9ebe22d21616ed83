"""Make tests/data/checkpoints/seeded: settings and logits of tiny models, by transformers 5.23.

python -m tests.data.make.seeded_checkpoints, where torch and transformers are installed.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    MixtralConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from tests.llm.seeded import FOLDER, IDS, weights

SIZES = {
    "vocab_size": 600, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
SECTIONS = {"mrope_section": [3, 3, 2], "mrope_interleaved": True}
# Each k head has three v heads, so the order of the v heads matters.
HYBRID = SIZES | {
    "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 64, "linear_num_key_heads": 2,
    "linear_num_value_heads": 6, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "rope_parameters": ROPE,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}  # fmt: skip
# The sizes of tests/data/models/qwen35.
QWEN35 = HYBRID | {
    "vocab_size": 608, "hidden_size": 128, "intermediate_size": 352, "tie_word_embeddings": True,
    "max_position_embeddings": 512, "rope_parameters": ROPE | SECTIONS,
}  # fmt: skip
QWEN35MOE = HYBRID | EXPERTS | {"rope_parameters": ROPE | SECTIONS}
del QWEN35MOE["intermediate_size"]
CONFIGS = {
    "gemma": GemmaConfig(**SIZES, num_key_value_heads=1, head_dim=32),
    "mixtral": MixtralConfig(
        **SIZES, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2
    ),
    "qwen3_next": Qwen3NextConfig(**HYBRID, **EXPERTS),
    "qwen3_5": Qwen3_5TextConfig(**QWEN35),
    "qwen3_5_moe": Qwen3_5MoeTextConfig(**QWEN35MOE),
}


def saved_shapes(config, folder):
    """Return name -> shape of the tensors that transformers saves."""
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    with safe_open(Path(folder) / "model.safetensors", "np") as file:
        return {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}


shapes = {}
for name, config in CONFIGS.items():
    text = json.dumps(config.to_dict(), indent=1, sort_keys=True)
    (FOLDER / f"{name}.json").write_text(text + "\n")
    with tempfile.TemporaryDirectory() as folder:
        shapes[name] = saved_shapes(config, folder)
    with tempfile.TemporaryDirectory() as folder:
        made = {
            key: torch.from_numpy(array) for key, (_, array) in weights(name, shapes[name]).items()
        }
        save_file(made, Path(folder) / "model.safetensors", {"format": "pt"})
        (Path(folder) / "config.json").write_text(text)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
        assert not info["missing_keys"] | info["unexpected_keys"], info
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0].numpy()
    np.save(FOLDER / f"{name}-logits.npy", logits)
(FOLDER / "shapes.json").write_text(json.dumps(shapes, indent=0) + "\n")
