"""Read attention windows, scales and caps from GGUF metadata; `config` reads the dimensions.

Key names: llama.cpp gguf-py/gguf/constants.py, MIT.  ``<a>`` is the architecture.
"""

import math
from dataclasses import dataclass

from npurt.errors import ModelFormatError
from npurt.llm.file.metadata import (
    CONVERT_AGAIN,
    FLAGS,
    INTEGERS,
    Metadata,
    numbers,
    optional,
    require,
)


@dataclass(frozen=True, slots=True)
class Conventions:
    """Numbers that change how a layer computes.

    Attributes:
        window: The attention window of a sliding-window layer in positions; 0 if not stated.
        slides: Whether each layer has a sliding window; () if not stated.
        local_rope_base: The rotary base of sliding-window layers; None if not stated.
        attention_softcap: The soft cap of scaled attention scores; 0 for none.
        logit_softcap: The soft cap of logits; 0 for none.
        embedding_scale: The factor of embeddings.
        residual_scale: The factor of outputs that are added to the residual stream.
        logit_scale: The divisor of logits.
        temperature: (b, n): queries are multiplied by ``1 + b log(1 + position // n)``.
    """

    window: int = 0
    slides: tuple[bool, ...] = ()
    local_rope_base: float | None = None
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    temperature: tuple[float, int] | None = None


def read_conventions(metadata: Metadata, n_layers: int) -> Conventions:
    """Read and check the conventions.

    Raises:
        ModelFormatError: A value has a wrong type or is out of range.
    """
    arch = require(metadata, "general.architecture", str)

    def number(name: str, default: float) -> float:
        value = optional(metadata, f"{arch}.{name}", float, default)
        if not (math.isfinite(value) and 0 <= value <= 1e9):
            raise _bad(f"{arch}.{name} is {value}")
        return value

    window = optional(metadata, f"{arch}.attention.sliding_window", int, 0)
    base = f"{arch}.rope.freq_base_swa"
    return Conventions(
        window=window if 0 < window < 1 << 24 else 0,
        slides=_slides(metadata, arch, n_layers),
        local_rope_base=number("rope.freq_base_swa", 1e4) if base in metadata else None,
        attention_softcap=number("attn_logit_softcapping", 0.0),
        logit_softcap=number("final_logit_softcapping", 0.0),
        embedding_scale=number("embedding_scale", 1.0),
        residual_scale=number("residual_scale", 1.0) or 1.0,
        logit_scale=number("logit_scale", 1.0) or 1.0,
        temperature=_temperature(metadata, arch),
    )


def _slides(metadata: Metadata, arch: str, n_layers: int) -> tuple[bool, ...]:
    """Return whether each layer has a sliding window.

    The metadata have a list or a number n.  With a number, all layers except every n-th have a
    window.
    """
    key = f"{arch}.attention.sliding_window_pattern"
    if isinstance(metadata.get(key), memoryview):
        listed = [bool(flag) for flag in numbers(metadata, key, FLAGS + INTEGERS)]
        if len(listed) < n_layers:
            raise _bad(f"{key} names {len(listed)} of {n_layers} layers")
        return tuple(listed[:n_layers])
    period = optional(metadata, key, int, 0)
    return tuple((i + 1) % period != 0 for i in range(n_layers)) if period > 0 else ()


def _temperature(metadata: Metadata, arch: str) -> tuple[float, int] | None:
    """Return the temperature of queries; its length defaults to the original context length."""
    slope = optional(metadata, f"{arch}.attention.temperature_scale", float, 0.0)
    original = optional(metadata, f"{arch}.rope.scaling.original_context_length", int, 0)
    length = optional(metadata, f"{arch}.attention.temperature_length", int, original)
    if slope == 0:
        return None
    if length < 1:
        raise _bad(f"{arch}.attention.temperature_scale has no length")
    return slope, length


def _bad(what: str) -> ModelFormatError:
    return ModelFormatError(what, remedy=CONVERT_AGAIN)
