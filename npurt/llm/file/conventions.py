"""What a file says of attention windows, scales and caps, beside the sizes in `config`.

Key names: llama.cpp gguf-py/gguf/constants.py, MIT.  ``<a>`` is the architecture.
"""

import math
from dataclasses import dataclass

import numpy as np

from npurt.errors import ModelFormatError
from npurt.llm.file.metadata import CONVERT_AGAIN, Metadata, numbers, optional, require


@dataclass(frozen=True, slots=True)
class Conventions:
    """Numbers that change how a layer computes.

    Attributes:
        window: Positions that a sliding layer sees; 0 when the file names none.
        slides: Which layers slide, by layer, when the file says so.
        local_rope_base: Rotary base of sliding layers, when the file names one.
        attention_softcap: Of scaled scores; 0 for none.
        logit_softcap: Of logits; 0 for none.
        embedding_scale: Embeddings are multiplied by it.
        residual_scale: What a layer adds to the residual stream is multiplied by it.
        logit_scale: Logits are divided by it.
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
    """Read and check them.

    Raises:
        ModelFormatError: One is of another type, or no sensible number.
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
    """Return which layers slide: from a list, or from a number n, every n-th layer not."""
    key = f"{arch}.attention.sliding_window_pattern"
    if isinstance(metadata.get(key), np.ndarray):
        listed = [bool(flag) for flag in numbers(metadata, key, "biu")]
        if len(listed) < n_layers:
            raise _bad(f"{key} names {len(listed)} of {n_layers} layers")
        return tuple(listed[:n_layers])
    period = optional(metadata, key, int, 0)
    return tuple((i + 1) % period != 0 for i in range(n_layers)) if period > 0 else ()


def _temperature(metadata: Metadata, arch: str) -> tuple[float, int] | None:
    """Return the temperature of queries; its length is by default the original context."""
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
