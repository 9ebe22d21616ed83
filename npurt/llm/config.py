"""A model's dimensions, read from GGUF metadata and checked against each other.

Key names: llama.cpp gguf-py/gguf/constants.py, MIT.  ``<a>`` is the architecture.
"""

import math
from dataclasses import dataclass

import numpy as np

from npurt.errors import ModelFormatError
from npurt.llm.metadata import CONVERT_AGAIN, Metadata, optional, require

WIDEST_HEAD = 256  # attend__vec.c
WIDEST_PRODUCT = 1 << 18  # columns; two such share the scratch memory of work.h
MOST_LAYERS = 1024  # the deepest models have some 130


@dataclass(frozen=True, slots=True)
class Scaling:
    """How rotary frequencies are stretched: ``none``, ``linear`` or ``yarn``."""

    kind: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True)
class Config:
    """Letters as elsewhere: D width, H heads, G kv heads, F feed-forward width, V vocabulary."""

    architecture: str
    n_layers: int
    n_context: int  # positions the model was trained for
    width: int  # D
    n_ff: int  # F
    n_heads: int  # H
    n_kv_heads: int  # G
    head_width: int
    n_vocab: int  # V
    eps: float
    rope_base: float
    rotated: int  # elements of a head that rotate
    scaling: Scaling
    attention_scale: float


def read_config(metadata: Metadata, n_vocab: int) -> Config:
    """Read and check the configuration.

    Args:
        n_vocab: Rows of the token embedding.

    Raises:
        ModelFormatError: A key is missing, of a wrong type, or does not fit the others.
    """
    arch = require(metadata, "general.architecture", str)

    def number(name: str, default: int | None = None, most: int = 1 << 24) -> int:
        key = f"{arch}.{name}"
        if isinstance(metadata.get(key), np.ndarray):
            raise _bad(f"{key} differs by layer, which npurt does not run")
        value = (
            require(metadata, key, int)
            if default is None
            else optional(metadata, key, int, default)
        )
        if not 0 < value <= most:
            raise _bad(f"{key} = {value} is not a sensible count")
        return value

    width, heads = number("embedding_length"), number("attention.head_count")
    head_width = number("attention.key_length", max(width // heads, 1))
    config = Config(
        architecture=arch,
        n_layers=number("block_count", most=MOST_LAYERS),
        n_context=number("context_length"),
        width=width,
        n_ff=number("feed_forward_length"),
        n_heads=heads,
        n_kv_heads=number("attention.head_count_kv", heads),
        head_width=head_width,
        n_vocab=n_vocab,
        eps=require(metadata, f"{arch}.attention.layer_norm_rms_epsilon", float),
        rope_base=optional(metadata, f"{arch}.rope.freq_base", float, 10000.0),
        rotated=number("rope.dimension_count", head_width),
        scaling=_scaling(metadata, arch),
        attention_scale=optional(metadata, f"{arch}.attention.scale", float, head_width**-0.5),
    )
    _check(config, number("attention.value_length", head_width))
    return config


def _scaling(metadata: Metadata, arch: str) -> Scaling:
    prefix = f"{arch}.rope.scaling"
    legacy = optional(metadata, f"{arch}.rope.scale_linear", float, 1.0)
    factor = optional(metadata, f"{prefix}.factor", float, legacy)
    kind = optional(metadata, f"{prefix}.type", str, "linear" if factor != 1.0 else "none")
    if kind not in ("none", "linear", "yarn"):
        raise _bad(f"{prefix}.type = {kind!r} is not a rope scaling that npurt knows")
    scaling = Scaling(
        kind=kind,
        factor=factor,
        original_context=optional(metadata, f"{prefix}.original_context_length", int, 0),
        attention_factor=optional(metadata, f"{prefix}.attn_factor", float, 1.0),
        beta_fast=optional(metadata, f"{prefix}.yarn_beta_fast", float, 32.0),
        beta_slow=optional(metadata, f"{prefix}.yarn_beta_slow", float, 1.0),
    )
    if kind == "yarn" and scaling.original_context < 1:
        raise _bad(f"{prefix}.original_context_length is missing, which yarn needs")
    for name in ("factor", "attention_factor", "beta_fast", "beta_slow"):
        value = getattr(scaling, name)
        if not 1e-3 <= value <= 1e6:
            raise _bad(f"the rope scaling's {name}, {value}, is not a sensible number")
    return scaling


def _check(config: Config, value_width: int) -> None:
    width = config.head_width
    if config.n_heads % config.n_kv_heads:
        raise _bad(f"{config.n_heads} heads do not share {config.n_kv_heads} kv heads evenly")
    if value_width != width:
        raise _bad(f"keys are {width} wide and values {value_width}; npurt needs them equal")
    if width % 16 or width > WIDEST_HEAD:
        raise _bad(f"heads are {width} wide; npurt needs a multiple of 16, at most {WIDEST_HEAD}")
    if config.rotated > width or config.rotated % 2:
        raise _bad(f"{config.rotated} of the {width} elements of a head cannot rotate in pairs")
    if not 0 < config.eps < 1:
        raise _bad(f"the norm's epsilon is {config.eps}")
    widest = max(config.n_vocab, config.n_ff, (config.n_heads + 2 * config.n_kv_heads) * width)
    if widest > WIDEST_PRODUCT:
        raise _bad(f"a product would have {widest} columns, more than {WIDEST_PRODUCT}")
    if not (math.isfinite(config.rope_base) and config.rope_base > 1):
        raise _bad(f"the rotary base is {config.rope_base}")
    if not (math.isfinite(config.attention_scale) and config.attention_scale > 0):
        raise _bad(f"the attention scale is {config.attention_scale}")


def _bad(what: str) -> ModelFormatError:
    return ModelFormatError(what, remedy=CONVERT_AGAIN)
