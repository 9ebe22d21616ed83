"""Read a model's dimensions from GGUF metadata, and check that they are consistent.

Key names: llama.cpp gguf-py/gguf/constants.py, MIT.  ``<a>`` is the architecture.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from npurt.errors import ModelFormatError
from npurt.graph.sizes import SIZES
from npurt.llm.file.conventions import Conventions, read_conventions
from npurt.llm.file.metadata import (
    CONVERT_AGAIN,
    FLAGS,
    INTEGERS,
    Metadata,
    numbers,
    optional,
    require,
)

MAX_LAYERS = 1024  # limit; the deepest models have some 130 layers

SOFTMAX = 1  # llama.cpp's LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX


@dataclass(frozen=True, slots=True)
class Scaling:
    """The scaling of rotary frequencies.

    The kind is ``none``, ``linear``, ``yarn`` or ``longrope``; for longrope, a tensor of the file
    has the divisors of the frequencies.
    """

    kind: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    rounded: bool = True  # yarn's ramp begins and ends at whole frequencies


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a mixture: feed-forward parts, of which each token uses *top_k*."""

    count: int
    top_k: int  # experts per token
    n_ff: int  # feed-forward width of one expert
    n_ff_shared: int  # feed-forward width of the shared expert; 0 if the model has none
    normed: bool | None  # normalise the weights of a token's experts; None: architecture default
    scale: float  # factor of the expert weights


@dataclass(frozen=True, slots=True)
class DeltaHeads:
    """The gated delta net of layers without attention; keys and values have the same width."""

    heads: int  # v heads, each with a state
    k_heads: int  # q and k heads
    width: int  # width of a head
    kernel_size: int  # width in tokens of the convolution before the net

    @property
    def channels(self) -> int:
        """The total number of columns of q, k and v."""
        return (2 * self.k_heads + self.heads) * self.width


@dataclass(frozen=True, slots=True)
class Config:
    """The dimensions of a model.  The letters D, F, H, G and V are those of docs/glossary.md."""

    architecture: str
    n_layers: int
    n_context: int  # positions in the training context
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
    experts: Experts | None = None
    delta: DeltaHeads | None = None
    recurrent: tuple[bool, ...] = ()  # whether each layer has a delta net, no attention; (): none
    n_ahead: int = 0  # multi-token-prediction blocks after the layers, which npurt does not run
    convolved: tuple[bool, ...] = ()  # whether each layer has a short convolution; (): none
    kernel_size: int = 0  # width in tokens of the short convolution
    conventions: Conventions = field(default_factory=Conventions)
    causal: bool = field(default=True, repr=False)  # False for an encoder

    def is_convolved(self, layer: int) -> bool:
        """Return whether *layer* has a short convolution instead of attention."""
        return bool(self.convolved) and self.convolved[layer]

    def is_recurrent(self, layer: int) -> bool:
        """Return whether *layer* has a gated delta net instead of attention."""
        return bool(self.recurrent) and self.recurrent[layer]


Number = Callable[..., int]  # (name, default or None if the key is required, maximum) -> value


def read_config(metadata: Metadata, n_vocab: int, *, encoder: bool = False) -> Config:
    """Read and check the configuration.

    Args:
        n_vocab: The number of rows of the token embedding.
        encoder: The model is an encoder, with LayerNorm and without a causal mask.

    Raises:
        ModelFormatError: A key is missing, has a wrong type, or contradicts another key.
    """
    arch = require(metadata, "general.architecture", str)
    n_blocks = 0

    def number(name: str, default: int | None = None, maximum: int = SIZES.columns) -> int:
        key = f"{arch}.{name}"
        if isinstance(metadata.get(key), memoryview):
            value = _for_each_layer(metadata, key, n_blocks)
        elif default is None:
            value = require(metadata, key, int)
        else:
            value = optional(metadata, key, int, default)
        if not 0 < value <= maximum and value != default:
            raise _bad(f"{key} = {value} is not a sensible count")
        return value

    n_blocks = number("block_count", maximum=MAX_LAYERS)
    width, heads = number("embedding_length"), number("attention.head_count")
    head_width = number("attention.key_length", max(width // heads, 1))
    mixed = f"{arch}.expert_count" in metadata and number("expert_count", 0, SIZES.experts) > 0
    n_ff = number("feed_forward_length", 0 if mixed else None)
    n_ahead = number("nextn_predict_layers", 0)
    if n_ahead >= n_blocks:
        raise _bad(f"{n_ahead} of {n_blocks} blocks predict further tokens; no layer remains")
    n_layers = n_blocks - n_ahead
    kv_heads, convolved = _kv_heads(metadata, f"{arch}.attention.head_count_kv", heads, n_layers)
    config = Config(
        architecture=arch,
        n_layers=n_layers,
        n_context=number("context_length"),
        width=width,
        n_ff=n_ff,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_width=head_width,
        n_vocab=n_vocab,
        eps=require(
            metadata, f"{arch}.attention.layer_norm_{'' if encoder else 'rms_'}epsilon", float
        ),
        rope_base=optional(metadata, f"{arch}.rope.freq_base", float, 10000.0),
        rotated=number("rope.dimension_count", head_width),
        scaling=_scaling(metadata, arch),
        attention_scale=optional(metadata, f"{arch}.attention.scale", float, head_width**-0.5),
        experts=_experts(metadata, arch, number, n_ff) if mixed else None,
        n_ahead=n_ahead,
        convolved=convolved,
        kernel_size=number("shortconv.l_cache", 0, SIZES.kernel_size),
        conventions=read_conventions(metadata, n_layers),
        causal=not encoder,
    )
    _check(config, number("attention.value_length", head_width))
    _refuse(metadata, arch, causal=not encoder)
    if f"{arch}.ssm.state_size" in metadata:
        config = replace(
            config,
            delta=_delta(number),
            recurrent=_recurrent(metadata, arch, number, config.n_layers),
        )
    return config


def _for_each_layer(metadata: Metadata, key: str, n_blocks: int) -> int:
    """Return the number *key*, which is a list with the same number for each block."""
    listed = numbers(metadata, key, INTEGERS)[:n_blocks].tolist()
    if len(set(listed)) != 1 or len(listed) < n_blocks:
        raise _bad(f"{key} differs by layer, which npurt does not run")
    return int(listed[0])


def _kv_heads(
    metadata: Metadata, key: str, heads: int, n_layers: int
) -> tuple[int, tuple[bool, ...]]:
    """Return the number of key heads, and whether each layer lacks attention (() if none does)."""
    if not isinstance(metadata.get(key), memoryview):
        count = optional(metadata, key, int, heads)
        if not 0 < count <= SIZES.columns:
            raise _bad(f"{key} = {count} is not a sensible count")
        return count, ()
    listed = numbers(metadata, key, INTEGERS)[:n_layers].tolist()
    counts = set(listed) - {0}
    if len(listed) < n_layers or len(counts) != 1 or min(counts) < 0:
        raise _bad(f"{key} differs by layer, which npurt does not run")
    return counts.pop(), tuple(count == 0 for count in listed) if 0 in listed else ()


def _experts(metadata: Metadata, arch: str, number: Number, n_ff: int) -> Experts:
    count, top_k = number("expert_count", None, SIZES.experts), number("expert_used_count")
    if top_k > count:
        raise _bad(f"a token uses {top_k} experts, but the model has {count}")
    # Source of the default widths: llama.cpp src/models/llama.cpp and qwen2moe.cpp, MIT.
    usual = n_ff if arch == "llama" else n_ff // top_k  # Mixtral has the architecture llama
    width = number("expert_feed_forward_length", usual)
    _check_columns("the feed-forward part of an expert", 2 * width)
    scale = optional(metadata, f"{arch}.expert_weights_scale", float, 1.0) or 1.0
    if not (math.isfinite(scale) and scale > 0):
        raise _bad(f"the expert weights are scaled by {scale}")
    norm = f"{arch}.expert_weights_norm"
    shared = number("expert_shared_feed_forward_length", n_ff)
    _check_columns("the feed-forward part of the shared expert", 2 * shared, minimum=0)
    return Experts(
        count=count,
        top_k=top_k,
        n_ff=width,
        n_ff_shared=shared,
        normed=require(metadata, norm, bool) if norm in metadata else None,
        scale=scale,
    )


def _delta(number: Number) -> DeltaHeads:
    heads, k_heads = number("ssm.time_step_rank"), number("ssm.group_count")
    width, inner = number("ssm.state_size"), number("ssm.inner_size")
    if inner != heads * width:
        raise _bad(
            f"a delta net of {heads} heads with states {width} wide has {inner} values; "
            "npurt needs keys and values of the same width"
        )
    if heads % k_heads:
        raise _bad(f"the {heads} heads of a delta net are no multiple of its {k_heads} key heads")
    _check_head("heads of a delta net", width, SIZES.delta)
    _check_columns("a delta net", (2 * k_heads + heads) * width + inner + 2 * heads)
    return DeltaHeads(
        heads, k_heads, width, kernel_size=number("ssm.conv_kernel", None, SIZES.kernel_size)
    )


def _recurrent(metadata: Metadata, arch: str, number: Number, n_layers: int) -> tuple[bool, ...]:
    """Return whether each layer has a delta net, from a list or an interval in the metadata."""
    key = f"{arch}.attention.recurrent_layers"
    if isinstance(metadata.get(key), bool):
        return (bool(metadata[key]),) * n_layers
    if key in metadata:
        listed = [bool(flag) for flag in numbers(metadata, key, FLAGS + INTEGERS)]
        if len(listed) < n_layers:
            raise _bad(f"{key} names {len(listed)} of {n_layers} layers")
        return tuple(listed[:n_layers])
    interval = number("full_attention_interval", 4)
    return tuple((i + 1) % interval != 0 for i in range(n_layers))


def _refuse(metadata: Metadata, arch: str, *, causal: bool) -> None:
    """Raise an error if a setting that npurt does not implement would change results."""
    gating = optional(metadata, f"{arch}.expert_gating_func", int, SOFTMAX)
    if gating != SOFTMAX:
        raise _bad(f"{arch}.expert_gating_func = {gating}: npurt routes by softmax (1) only")
    if optional(metadata, f"{arch}.expert_group_count", int, 1) > 1:
        raise _bad(f"{arch}.expert_group_count: npurt does not choose experts by groups")
    if optional(metadata, f"{arch}.attention.causal", bool, causal) is not causal:
        raise _bad(f"{arch}.attention.causal is {not causal}, and npurt runs this architecture "
                   f"{'with' if causal else 'without'} a causal mask")  # fmt: skip
    sections = f"{arch}.rope.dimension_sections"
    if sections in metadata and any(numbers(metadata, sections, INTEGERS)[3:]):
        raise _bad(f"{sections} has a fourth section, which npurt does not implement")


def _scaling(metadata: Metadata, arch: str) -> Scaling:
    prefix = f"{arch}.rope.scaling"
    legacy = optional(metadata, f"{arch}.rope.scale_linear", float, 1.0)
    factor = optional(metadata, f"{prefix}.factor", float, legacy)
    kind = optional(metadata, f"{prefix}.type", str, "linear" if factor != 1.0 else "none")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise _bad(f"{prefix}.type = {kind!r} is not a rope scaling that npurt implements")
    scaling = Scaling(
        kind=kind,
        factor=factor,
        original_context=optional(metadata, f"{prefix}.original_context_length", int, 0),
        attention_factor=optional(metadata, f"{prefix}.attn_factor", float, 1.0),
        beta_fast=optional(metadata, f"{prefix}.yarn_beta_fast", float, 32.0),
        beta_slow=optional(metadata, f"{prefix}.yarn_beta_slow", float, 1.0),
    )
    if kind == "yarn" and scaling.original_context < 1:
        raise _bad(f"yarn needs {prefix}.original_context_length, which is missing")
    for name in ("factor", "attention_factor", "beta_fast", "beta_slow"):
        value = getattr(scaling, name)
        if not 1e-3 <= value <= 1e6:
            raise _bad(f"the rope scaling's {name}, {value}, is not a sensible number")
    return scaling


def _check(config: Config, value_width: int) -> None:
    width = config.head_width
    if config.n_heads % config.n_kv_heads:
        raise _bad(f"{config.n_heads} heads are no multiple of {config.n_kv_heads} kv heads")
    if value_width != width:
        raise _bad(f"keys are {width} wide and values {value_width}; npurt needs equal widths")
    _check_head("heads", width, SIZES.head)
    if config.rotated > width or config.rotated % 2:
        raise _bad(f"{config.rotated} of the {width} elements of a head cannot rotate in pairs")
    if not 0 < config.eps < 1:
        raise _bad(f"the norm's epsilon is {config.eps}")
    # An upper bound of the columns of q, its gate, k and v.
    _check_columns("attention", 2 * (config.n_heads + config.n_kv_heads) * width)
    _check_columns("the feed-forward part", 2 * config.n_ff, minimum=0)
    _check_columns("the vocabulary", config.n_vocab)
    _check_rotary_base("the rotary base", config.rope_base)
    if config.conventions.local_rope_base is not None:
        _check_rotary_base("the rotary base of sliding layers", config.conventions.local_rope_base)
    if not (math.isfinite(config.attention_scale) and config.attention_scale > 0):
        raise _bad(f"the attention scale is {config.attention_scale}")


def _check_rotary_base(what: str, base: float) -> None:
    if not (math.isfinite(base) and base > 1):
        raise _bad(f"{what} is {base}")


def _check_columns(what: str, columns: int, minimum: int = 1) -> None:
    maximum = SIZES.columns
    if not minimum <= columns <= maximum:
        raise _bad(f"{what} has {columns} columns; npurt runs products of up to {maximum}")


def _check_head(what: str, width: int, maximum: int) -> None:
    step = SIZES.head_step
    if width % step or width > maximum:
        raise _bad(f"{what} are {width} wide; npurt needs a multiple of {step}, at most {maximum}")


def require_context(metadata: Metadata, n_ctx: int) -> None:
    """Raise an error if a context of *n_ctx* tokens exceeds the model's attention window.

    Raises:
        ModelFormatError: The model has an attention window of less than *n_ctx* tokens.
    """
    key = f"{require(metadata, 'general.architecture', str)}.attention.sliding_window"
    window = optional(metadata, key, int, 0)
    if 0 < window < n_ctx:
        raise ModelFormatError(
            f"{key} = {window}: npurt does not implement this attention window, which is shorter "
            f"than the context of {n_ctx}",
            remedy=f"use a context (n_ctx, -c) of at most {window}",
        )


def _bad(what: str) -> ModelFormatError:
    return ModelFormatError(what, remedy=CONVERT_AGAIN)
