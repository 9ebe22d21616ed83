"""Convert the settings of a checkpoint to GGUF metadata and rotary tables.

Sources: llama.cpp conversion/base.py (keys), MIT; transformers modeling_rope_utils.py (formulas of
the rotary scalings), Apache-2.0.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.encoders import encoder_keys
from npurt.llm.convert.checkpoint.families import Family, Keys
from npurt.llm.convert.checkpoint.settings import CheckpointSettings, bad

# Models whose sliding-window layers have separate rotary settings, which `families` converts.
LOCAL = ("gemma3_text",)
LARGEST = 1e30  # maximum of a number in rotary settings; float32 can represent it


def keys_of(family: Family, settings: CheckpointSettings) -> Keys:
    """Return the metadata keys of the model, prefixed by the architecture.

    Raises:
        ModelFormatError: The settings are damaged, or GGUF cannot express them.
    """
    quantised = settings.get("quantization_config")
    if not isinstance(quantised, dict) or quantised.get("quant_method") not in family.methods:
        settings.require("quantization_config", None)
    name = "hidden_act" if settings.get("hidden_activation") is None else "hidden_activation"
    settings.require(name, None, *family.activations)
    if family.is_encoder:
        return _prefixed(family, encoder_keys(settings) | family.extra(settings))
    if not family.windows and family.arch == "llama":
        _refuse_window(settings)
    head = settings.head_width
    keys: Keys = {
        "block_count": settings.layers,
        "context_length": settings.integer("max_position_embeddings"),
        "embedding_length": settings.integer("hidden_size"),
        "feed_forward_length": family.width(settings),
        "attention.head_count": settings.heads,
        "attention.head_count_kv": settings.kv_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": settings.number(
            "rms_norm_eps" if settings.get("rms_norm_eps") else "norm_eps"
        ),
    }
    if not keys["feed_forward_length"]:
        del keys["feed_forward_length"]
    keys |= _rope_keys(settings, head, family) | family.extra(settings)
    return _prefixed(family, keys)


def _prefixed(family: Family, keys: Keys) -> Keys:
    return {f"{family.arch}.{key}": value for key, value in keys.items()}


def _refuse_window(settings: CheckpointSettings) -> None:
    """Raise an error if the attention window is shorter than the context.

    GGUF has no attention window for the architecture llama.
    """
    window = settings.get("sliding_window")
    if window and window < settings.integer("max_position_embeddings"):
        raise ModelFormatError(
            f"config.json: sliding_window is {window}, which GGUF cannot express for a Llama",
            remedy=f"set max_position_embeddings to {window} in config.json: in a context of up to "
            f"{window} tokens the window has no effect",
        )


def rope_of(settings: CheckpointSettings) -> dict[str, Any]:
    """Return the rotary settings in the form of transformers 5; convert older forms.

    Raises:
        ModelFormatError: The settings are no JSON objects, or differ between layers.
    """
    trained = _one_for_all_layers(settings, "rope_parameters")
    scaling = _one_for_all_layers(settings, "rope_scaling")  # users add it; takes precedence
    rope = scaling or trained
    found = {
        "rope_theta": settings.get("rope_theta", 10000.0),
        "partial_rotary_factor": settings.get("partial_rotary_factor", 1.0),
        "rope_type": rope.get("type", "default"),
    }
    original = settings.get("original_max_position_embeddings")
    if original is not None:
        found["original_max_position_embeddings"] = original
    kept = {key: trained[key] for key in ("rope_theta", "partial_rotary_factor") if key in trained}
    return found | kept | rope


def _one_for_all_layers(settings: CheckpointSettings, name: str) -> dict[str, Any]:
    """Return the rotary settings object *name* without its nulls, or {} if it is missing.

    Raises:
        ModelFormatError: *name* is no JSON object, or its settings differ between layers.
    """
    rope = settings.get(name, {})
    if not isinstance(rope, dict):
        raise bad(f"config.json: {name} is {rope!r:.40}, not an object")
    kinds = [value for value in rope.values() if isinstance(value, dict)]
    if settings.get("model_type") in LOCAL and isinstance(rope.get("full_attention"), dict):
        kinds = [rope["full_attention"]]
    if any(kind != kinds[0] for kind in kinds):
        raise ModelFormatError(
            "config.json: sliding and other layers rotate differently, which GGUF cannot express "
            "for this architecture",
            remedy="use a GGUF file that the model's makers published, if one exists",
        )
    found = kinds[0] if kinds else rope
    return {key: value for key, value in found.items() if value is not None}


def _rope_keys(settings: CheckpointSettings, head: int, family: Family) -> Keys:
    rope = rope_of(settings)
    keys: Keys = {
        "rope.freq_base": _real(rope, "rope_theta"),
        "rope.dimension_count": int(head * _real(rope, "partial_rotary_factor")),
    }
    kind = rope["rope_type"]
    if kind in ("default", "llama3"):
        return keys
    if kind == "linear":
        return keys | {"rope.scaling.type": kind, "rope.scaling.factor": _real(rope, "factor")}
    context = settings.integer("max_position_embeddings")
    original = int(_real({"original_max_position_embeddings": context} | rope,
                         "original_max_position_embeddings"))  # fmt: skip
    keys["rope.scaling.original_context_length"] = original
    if kind == "longrope":
        scale = context / original
        usual = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
        keys["rope.scaling.attn_factor"] = _real({"attention_factor": usual} | rope,
                                                 "attention_factor")  # fmt: skip
        return keys
    odd = [key for key in ("mscale", "mscale_all_dim", "truncate") if key in rope]
    odd = [key for key in odd if key not in family.rotary and rope[key] is not True]
    if kind != "yarn" or odd:
        raise ModelFormatError(
            f"config.json: npurt does not convert rotary scaling of kind {kind!r}"
            + (f" with {', '.join(odd)}" if kind == "yarn" else ""),
            remedy="use a GGUF file that the model's makers published, if one exists",
        )
    factor = _real(rope, "factor")
    keys |= {"rope.scaling.type": kind, "rope.scaling.factor": factor}
    for name in ("beta_fast", "beta_slow"):
        if name in rope:
            keys[f"rope.scaling.yarn_{name}"] = _real(rope, name)
    if "attention_factor" in rope:  # the key in GGUF multiplies the default factor
        usual = 0.1 * math.log(factor) + 1
        keys["rope.scaling.attn_factor"] = _real(rope, "attention_factor") / usual
    return keys


def rope_tables(settings: CheckpointSettings) -> dict[str, npt.NDArray[np.float32]]:
    """Return the divisors of the rotary frequencies for Llama 3's scaling and longrope, by name."""
    rope = rope_of(settings)
    head = settings.head_width
    if rope["rope_type"] == "longrope":
        lists = {length: rope.get(f"{length}_factor") for length in ("long", "short")}
        tables = {name: _table(name, each, head) for name, each in lists.items()}
        return {f"rope_factors_{name}.weight": table for name, table in tables.items()}
    if rope["rope_type"] == "llama3":
        return {"rope_freqs.weight": _llama3_divisors(rope, head)}
    return {}


def _table(name: str, values: Any, head: int) -> npt.NDArray[np.float32]:
    numbers = isinstance(values, list) and all(
        type(v) in (int, float) and 0 < v < LARGEST for v in values
    )
    if not numbers or not 0 < len(values) <= head // 2:
        raise bad(f"the rotary factors {name!r} are no list of up to {head // 2} positive numbers")
    return np.array(values, np.float32)


def _llama3_divisors(rope: dict[str, Any], head: int) -> npt.NDArray[np.float32]:
    """Return the divisor of each frequency: 1 for short wavelengths, `factor` for long ones."""
    factor, low, high = (
        _real(rope, name) for name in ("factor", "low_freq_factor", "high_freq_factor")
    )
    waves = 2 * math.pi * _real(rope, "rope_theta") ** (np.arange(0, head, 2) / head)
    turns = _real(rope, "original_max_position_embeddings") / waves
    if not low < high:
        raise bad(f"low_freq_factor is {low}, not less than high_freq_factor, {high}")
    smooth = (turns - low) / (high - low)
    between = 1 / np.where(turns < low, 1, (1 - smooth) / factor + smooth)
    divisors = np.select([turns > high, turns < low], [1.0, factor], between)
    return np.asarray(divisors, np.float32)


def _real(rope: dict[str, Any], name: str) -> float:
    value = rope.get(name)
    if not isinstance(value, int | float) or not 0 < value < LARGEST:
        raise bad(f"config.json: {name} of the rotary settings is {value!r:.40}")
    return float(value)
