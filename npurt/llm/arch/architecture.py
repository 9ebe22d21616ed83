"""What distinguishes one architecture from another, as data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from npurt.graph.ops import Activation, Gating
from npurt.llm.file.config import Config

EMBEDDING = "token_embd.weight"


class Rope(Enum):
    """Which elements of a head rotate together; the wrong one gives fluent nonsense."""

    ADJACENT = "(2i, 2i + 1)"
    HALVES = "(i, i + rotated / 2)"


class QKNorm(Enum):
    """What of q and k is normed before it rotates."""

    NONE = "none"
    HEAD = "each head"
    WHOLE = "all heads together"


@dataclass(frozen=True, slots=True)
class Norms:
    """Names of the norms around the two parts of a layer; None where there is none."""

    before_mixer: str | None = "attn_norm"
    after_mixer: str | None = None
    before_ffn: str | None = "ffn_norm"
    after_ffn: str | None = None
    output: str = "output_norm"


@dataclass(frozen=True, slots=True)
class Unit:
    """The gated unit of the feed-forward part: see `npurt.graph.ops.GatedUnit`."""

    activation: Activation = Activation.SILU
    limit: float | None = None
    alpha: float = 1.0
    up_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Mixture:
    """How a mixture of experts is put together."""

    normed: bool  # the weights of a token's experts are made to add up to 1
    shared: bool  # there is an expert that every token gets, times the sigmoid of a gate
    gating: Gating = Gating.SOFTMAX


@dataclass(frozen=True, slots=True)
class DeltaLayout:
    """Where the heads of a gated delta net lie."""

    grouped: bool  # v head h has k head h // (heads / k_heads), not h % k_heads


@dataclass(frozen=True, slots=True)
class Encoder:
    """How an encoder differs from a decoder: its rows see each other, and norms come after parts.

    Attributes:
        positions: Positions are rows that are added to those of tokens; else q and k rotate.
        gated: The feed-forward part has a gate.
    """

    positions: bool
    gated: bool


@dataclass(frozen=True, slots=True)
class LayerRule:
    """How one layer attends.

    Attributes:
        window: Positions that it sees, its own included; 0 for all.
        rotates: q and k rotate.
        local: The rotary frequencies are those of sliding layers.
    """

    window: int = 0
    rotates: bool = True
    local: bool = False


Rule = Callable[[Config, int], LayerRule]


def same(config: Config, layer: int) -> LayerRule:
    """Return the rule of architectures whose layers are alike."""
    del config, layer
    return LayerRule()


def sliding(period: int) -> Rule:
    """Return the rule that all layers but every *period*-th slide; a list in the file wins."""

    def rule(config: Config, layer: int) -> LayerRule:
        slides = config.conventions.slides
        local = slides[layer] if slides else (layer + 1) % period != 0
        return LayerRule(config.conventions.window if local else 0, local=local)

    return rule


def _as_is(config: Config) -> Config:
    return config


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture: what is special about it.

    Attributes:
        layer: The rule of each layer.
        complete: Fills in what follows from the architecture and is not in the file.
    """

    name: str
    rope: Rope
    qk_norm: QKNorm = QKNorm.NONE
    gated: bool = False  # attn_q gives each head and its gate, where it has the rows for it
    sinks: bool = False  # each head has one more logit, whose value is nothing
    norms: Norms = field(default_factory=Norms)
    unit: Unit = field(default_factory=Unit)
    mixture: Mixture | None = None  # of models that have experts
    delta: DeltaLayout | None = None  # of layers without attention
    encoder: Encoder | None = None  # None: it is a decoder
    convolution: bool = False  # layers without key heads have a short convolution
    layer: Rule = same
    complete: Callable[[Config], Config] = _as_is
