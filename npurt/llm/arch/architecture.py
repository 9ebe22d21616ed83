"""Data that describe an architecture: its norms, rotary embedding, experts and layer rules."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from npurt.graph.ops import Activation, Gating
from npurt.llm.file.config import Config

EMBEDDING = "token_embd.weight"


class RopePairs(Enum):
    """The pairs of elements of a head that rotate together.

    With the wrong pairing a model generates fluent nonsense.
    """

    ADJACENT = "(2i, 2i + 1)"
    HALVES = "(i, i + rotated / 2)"


class QKNorm(Enum):
    """The groups of elements of q and k that are normalised before the rotation."""

    NONE = "none"
    HEAD = "each head"
    WHOLE = "all heads together"


@dataclass(frozen=True, slots=True)
class Norms:
    """Names of the norms around the mixer and the feed-forward part of a layer.

    A field is None if the architecture has no norm at this place.
    """

    before_mixer: str | None = "attn_norm"
    after_mixer: str | None = None
    before_ffn: str | None = "ffn_norm"
    after_ffn: str | None = None
    output: str = "output_norm"


@dataclass(frozen=True, slots=True)
class UnitConventions:
    """The gated unit of the feed-forward part; `npurt.graph.ops.GatedUnit` describes the fields."""

    activation: Activation = Activation.SILU
    limit: float | None = None
    alpha: float = 1.0
    up_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Mixture:
    """The conventions of a mixture of experts."""

    normed: bool  # the weights of a token's experts are divided by their sum
    shared: bool  # every token also uses a shared expert, multiplied by the sigmoid of a gate
    gating: Gating = Gating.SOFTMAX


@dataclass(frozen=True, slots=True)
class DeltaLayout:
    """The assignment of k heads to v heads in a gated delta net."""

    grouped: bool  # True: v head h uses k head h // (heads / k_heads); False: h % k_heads


@dataclass(frozen=True, slots=True)
class EncoderConventions:
    """The conventions of an encoder: all rows attend to each other; norms follow each part.

    Attributes:
        positions: True adds a learned embedding of the position to the embedding of each token;
            False rotates q and k.
        gated: The feed-forward part has a gate.
    """

    positions: bool
    gated: bool


@dataclass(frozen=True, slots=True)
class LayerRule:
    """The attention of one layer.

    Attributes:
        window: The number of positions that a token attends to, its own position included; 0 for
            all.
        rotates: q and k rotate.
        local: The layer uses the rotary frequencies of sliding-window layers.
    """

    window: int = 0
    rotates: bool = True
    local: bool = False


Rule = Callable[[Config, int], LayerRule]


def same(config: Config, layer: int) -> LayerRule:
    """Return the default rule: full attention with rotation in every layer."""
    del config, layer
    return LayerRule()


def sliding(period: int) -> Rule:
    """Return a rule: every *period*-th layer attends to all positions, the others to a window.

    A list of sliding-window layers in the file takes precedence.
    """

    def rule(config: Config, layer: int) -> LayerRule:
        slides = config.conventions.slides
        local = slides[layer] if slides else (layer + 1) % period != 0
        return LayerRule(config.conventions.window if local else 0, local=local)

    return rule


def _as_is(config: Config) -> Config:
    return config


@dataclass(frozen=True, slots=True)
class Architecture:
    """The conventions of one architecture.

    Attributes:
        layer: Returns the rule of a layer.
        complete: Adds settings that the architecture implies and the file does not state.
    """

    name: str
    rope: RopePairs
    qk_norm: QKNorm = QKNorm.NONE
    gated: bool = False  # attn_q computes each head and its gate, if it has rows for both
    sinks: bool = False  # the softmax of each head has one more logit, which has no value vector
    norms: Norms = field(default_factory=Norms)
    unit: UnitConventions = field(default_factory=UnitConventions)
    mixture: Mixture | None = None  # None: the architecture has no experts
    delta: DeltaLayout | None = None  # None: the architecture has no gated delta nets
    encoder: EncoderConventions | None = None  # None: the architecture is a decoder
    convolution: bool = False  # layers without key heads have a short convolution
    layer: Rule = same
    complete: Callable[[Config], Config] = _as_is
