"""Helpers that write checkpoints of random numbers from a seed.

tests/data/checkpoints/seeded holds the settings, the names and shapes of the tensors, and the
logits of transformers.  tests/data/make/seeded_checkpoints.py made these files.
"""

import json
import math
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[1] / "data/checkpoints/seeded"
MODELS = ("gemma", "mixtral", "qwen3_next", "qwen3_5", "qwen3_5_moe")
IDS = [(7 * i * i + 3 * i) % 400 for i in range(24)]


def config_of(model):
    """Return config.json as transformers saved it."""
    return json.loads((FOLDER / f"{model}.json").read_text())


def shapes_of(model):
    """Return name -> shape of the tensors, as transformers saves them."""
    return json.loads((FOLDER / "shapes.json").read_text())[model]


def weights(model, shapes):
    """Return name -> (dtype, array) of a checkpoint with these *shapes*."""
    rng = np.random.default_rng(20261123)
    made = {}
    for name in sorted(shapes):
        numbers = rng.standard_normal(shapes[name]) / math.sqrt(shapes[name][-1])
        is_norm = len(shapes[name]) == 1 and name.endswith(".weight")
        if is_norm and (model == "mixtral" or "linear_attn" in name):  # others store w - 1
            numbers += 1
        made[name] = "F32", numbers.astype(np.float32)
    return made


def write(model, folder, change=dict):
    """Write the settings of *model* and its tensors, after *change*, to *folder*."""
    # Imported here, because seeded_checkpoints.py runs without the packages of checkpoints.py.
    from tests.llm.checkpoints import encode

    (folder / "config.json").write_text(json.dumps(config_of(model)))
    tensors = weights(model, shapes_of(model))
    (folder / "model.safetensors").write_bytes(encode(change(tensors)))
