"""Make tests/data/checkpoints/seeded: settings and logits of tiny models, by transformers 5.23.

python -m tests.data.make.seeded_checkpoints, where torch and transformers are installed.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GemmaConfig, MixtralConfig

from tests.llm.seeded import FOLDER, IDS, config_of, weights

SIZES = {
    "vocab_size": 600, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
CONFIGS = {
    "gemma": GemmaConfig(**SIZES, num_key_value_heads=1, head_dim=32),
    "mixtral": MixtralConfig(
        **SIZES, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2
    ),
}

for name, config in CONFIGS.items():
    text = json.dumps(config.to_dict(), indent=1, sort_keys=True)
    (FOLDER / f"{name}.json").write_text(text + "\n")
    with tempfile.TemporaryDirectory() as folder:
        made = {
            key: torch.from_numpy(array) for key, (_, array) in weights(config_of(name)).items()
        }
        save_file(made, Path(folder) / "model.safetensors", {"format": "pt"})
        (Path(folder) / "config.json").write_text(text)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0].numpy()
    np.save(FOLDER / f"{name}-logits.npy", logits)
