"""What distinguishes one architecture from another, as data, and what a model is made of.

Letters here and beside: T rows in use, D width, H heads, G kv heads, W head width, F feed-forward
width, E experts, V tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from npurt.cpu.engine import Input
from npurt.device import F32, Device
from npurt.llm.config import Config
from npurt.llm.state import State
from npurt.runtime.placement import Placed

EMBEDDING = "token_embd.weight"

Shapes = Mapping[str, tuple[int, ...]]  # of a file's tensors


class Rope(Enum):
    """Which elements of a head rotate together; the wrong one gives fluent nonsense."""

    ADJACENT = "(2i, 2i + 1)"
    HALVES = "(i, i + rotated / 2)"


@dataclass(frozen=True, slots=True)
class Mixture:
    """How a mixture of experts is put together."""

    normed: bool  # the shares of a token's experts are made to add up to 1
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


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor that a file must or may have."""

    shape: tuple[int, ...]  # numpy order: (N, K) for weights, (E, N, K) for stacks of them
    optional: bool = False
    numbers: bool = False  # no weight of a product, although of two axes

    @property
    def is_weight(self) -> bool:
        """True for what is packed and multiplied by."""
        return len(self.shape) > 1 and not self.numbers


@dataclass(frozen=True, slots=True)
class Source:
    """Where a weight is that has no tensor of its own."""

    tensor: str
    rows: npt.NDArray[np.intp] | None = None  # all of them


@dataclass(slots=True)
class Model:
    """Everything a plan is built from."""

    config: Config
    architecture: Architecture
    weights: Mapping[str, Placed]  # by name without ".weight"
    numbers: Mapping[str, F32]  # what is not multiplied by: norms, biases, tables
    cos: F32
    sin: F32
    state: State
    rows: int  # most rows of one run
    device: Device

    def input(self, k: int, *names: str, fine: bool = False, fan: int = 1) -> Input:
        """Return an input of *k* columns for the weights of these names, in any layer."""
        integer = any(
            w.packed.tensor.format.block > 1
            for name, w in self.weights.items()
            if name.rpartition(".")[2] in names
        )
        return Input(self.rows * fan, k, quantised=integer, fine=fine)
