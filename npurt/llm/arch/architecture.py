"""What distinguishes one architecture from another, as data."""

from dataclasses import dataclass
from enum import Enum

EMBEDDING = "token_embd.weight"


class Rope(Enum):
    """Which elements of a head rotate together; the wrong one gives fluent nonsense."""

    ADJACENT = "(2i, 2i + 1)"
    HALVES = "(i, i + rotated / 2)"


@dataclass(frozen=True, slots=True)
class Mixture:
    """How a mixture of experts is put together."""

    normed: bool  # the weights of a token's experts are made to add up to 1
    shared: bool  # there is an expert that every token gets, times the sigmoid of a gate


@dataclass(frozen=True, slots=True)
class DeltaLayout:
    """Where the heads of a gated delta net lie."""

    grouped: bool  # v head h has k head h // (heads / k_heads), not h % k_heads


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture: a decoder of pre-norm layers, and what is special about it."""

    name: str
    rope: Rope
    head_norms: bool = False  # heads of q and k are normed before they rotate
    gated: bool = False  # attn_q gives each head and its gate, where it has the rows for it
    ffn_norm: str = "ffn_norm"  # the norm before the feed-forward part
    mixture: Mixture | None = None  # of models that have experts
    delta: DeltaLayout | None = None  # of layers without attention
