"""The ops of a graph, as data.

An op has its tensors and its parameters.  `meaning` has a function that computes each op, and
`cost` computes its cost.  `READS`, `WRITES` and `STATES` name the fields with tensors; such a field
is None, a tensor, or a tuple of tensors.  Letters: T rows, L selected rows, D width, H heads, G key
heads, W head width, C channels, E experts, K experts per token (or columns of a matrix), N rows of
a matrix, V vocabulary, P positions.
"""

from enum import Enum
from functools import cached_property
from typing import ClassVar

from npurt.graph.data import Data
from npurt.graph.tensor import Tensor


class Activation(Enum):
    """An activation function, applied to each element."""

    NONE = "none"
    SILU = "silu"  # x * sigmoid(x)
    GELU = "gelu"  # tanh form: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
    GELU_ERF = "gelu_erf"  # 0.5 x (1 + erf(x / sqrt(2)))
    RELU_SQUARED = "relu_squared"  # max(x, 0)^2


class Pairing(Enum):
    """The pairs of elements of a head that a rotary embedding rotates."""

    ADJACENT = "adjacent"  # (2i, 2i + 1)
    HALVES = "halves"  # (i, i + rotated / 2)


class Gating(Enum):
    """The function that turns the scores of a router into expert weights."""

    SOFTMAX = "softmax"  # softmax over all experts
    SIGMOID = "sigmoid"  # sigmoid of each score
    SOFTMAX_CHOSEN = "softmax_chosen"  # softmax over the chosen experts


class Precision(Enum):
    """The minimum precision of a product's operands on a device."""

    ROW8 = "row8"  # int8 activations with one scale per row
    BLOCK8 = "block8"  # int8 activations with one scale per 32 columns, or int16
    INT16 = "int16"  # int16 activations
    EXACT = "exact"  # the file's weights without requantisation: the product runs on the host


class Op(Data):
    """The base class of ops.

    Attributes:
        name: The name of the op, such as ``blk.0.attn_norm``.
    """

    READS: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[tuple[str, ...]] = ("out",)
    STATES: ClassVar[tuple[str, ...]] = ()  # states, which the op reads and writes

    name: str

    @cached_property
    def reads(self) -> tuple[Tensor, ...]:
        """Tensors that the op reads, except states."""
        return self._tensors(self.READS)

    @cached_property
    def writes(self) -> tuple[Tensor, ...]:
        """Tensors that the op writes, except states."""
        return self._tensors(self.WRITES)

    @cached_property
    def states(self) -> tuple[Tensor, ...]:
        """States that the op reads and writes."""
        return self._tensors(self.STATES)

    def _tensors(self, fields: tuple[str, ...]) -> tuple[Tensor, ...]:
        found: list[Tensor] = []
        for name in fields:
            value = getattr(self, name)
            if isinstance(value, tuple):
                found += value
            elif value is not None:
                found.append(value)
        return tuple(found)


# --- Rows -----------------------------------------------------------------------------------------


class Embedding(Op):
    """``out[t] = scale * weight[tokens[t]]``."""

    READS: ClassVar[tuple[str, ...]] = ("tokens", "weight")

    tokens: Tensor  # i32 [T]
    weight: Tensor  # [V, D]
    out: Tensor  # [T, D]
    scale: float = 1.0


class SelectRows(Op):
    """Copy the rows whose logits are computed, in order."""

    READS: ClassVar[tuple[str, ...]] = ("x",)

    x: Tensor  # [T, D]
    out: Tensor  # [L, D]


class Copy(Op):
    """``out = x``, for an output that is also used inside the graph."""

    READS: ClassVar[tuple[str, ...]] = ("x",)

    x: Tensor
    out: Tensor


class Split(Op):
    """Split the columns of each of *heads* equal groups into one piece per output."""

    READS: ClassVar[tuple[str, ...]] = ("x",)
    WRITES: ClassVar[tuple[str, ...]] = ("outs",)

    x: Tensor  # [T, heads * (n0 + n1 + ...)]
    outs: tuple[Tensor, ...]  # [T, heads * n0], [T, heads * n1], ...
    heads: int = 1


# --- Elements -------------------------------------------------------------------------------------


class Add(Op):
    """``out = a + scale * b``."""

    READS: ClassVar[tuple[str, ...]] = ("a", "b")

    a: Tensor
    b: Tensor
    out: Tensor
    scale: float = 1.0


class Multiply(Op):
    """``out = a * b``."""

    READS: ClassVar[tuple[str, ...]] = ("a", "b")

    a: Tensor
    b: Tensor
    out: Tensor


class Scale(Op):
    """``out = factor * x``."""

    READS: ClassVar[tuple[str, ...]] = ("x",)

    x: Tensor
    out: Tensor
    factor: float


class Softcap(Op):
    """``out = cap * tanh(x / cap)``."""

    READS: ClassVar[tuple[str, ...]] = ("x",)

    x: Tensor
    out: Tensor
    cap: float


class SigmoidGate(Op):
    """``out = x * sigmoid(gate)``; a gate of one column applies to all columns of *x*."""

    READS: ClassVar[tuple[str, ...]] = ("x", "gate")

    x: Tensor  # [T, n]
    gate: Tensor  # [T, n] or [T, 1]
    out: Tensor


class GatedUnit(Op):
    """``out = activation(gate) * (up + up_offset)``; without *up*, ``out = activation(gate)``.

    With a *limit*, inputs are clamped first: ``gate <= limit`` and ``-limit <= up <= limit``.
    *alpha* multiplies the argument of the sigmoid in SiLU.
    """

    READS: ClassVar[tuple[str, ...]] = ("gate", "up")

    gate: Tensor
    up: Tensor | None
    out: Tensor
    activation: Activation = Activation.SILU
    limit: float | None = None
    alpha: float = 1.0
    up_offset: float = 0.0


# --- Norms ----------------------------------------------------------------------------------------


class RMSNorm(Op):
    """``out = x / sqrt(mean(x^2) + eps) * weight``, for each of *heads* groups of columns."""

    READS: ClassVar[tuple[str, ...]] = ("x", "weight")

    x: Tensor  # [T, n]
    weight: Tensor | None  # [n / heads]
    out: Tensor
    eps: float
    heads: int = 1
    plus_one: bool = False  # True multiplies by weight + 1


class LayerNorm(Op):
    """``out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias``, for each row."""

    READS: ClassVar[tuple[str, ...]] = ("x", "weight", "bias")

    x: Tensor  # [T, n]
    weight: Tensor  # [n]
    bias: Tensor | None  # [n]
    out: Tensor
    eps: float


class L2Norm(Op):
    """``out = x / sqrt(sum(x^2) + eps)``, for each of *heads* equal groups of columns."""

    READS: ClassVar[tuple[str, ...]] = ("x",)

    x: Tensor
    out: Tensor
    eps: float
    heads: int = 1


class GatedNorm(Op):
    """``out = RMSNorm(x) * silu(gate)``, with a norm for each of *heads* groups of columns."""

    READS: ClassVar[tuple[str, ...]] = ("x", "gate", "weight")

    x: Tensor  # [T, H * W]
    gate: Tensor  # [T, H * W]
    weight: Tensor  # [W]
    out: Tensor
    eps: float
    heads: int


# --- Products -------------------------------------------------------------------------------------


class MatMul(Op):
    """``out = x @ weight.T + bias``."""

    READS: ClassVar[tuple[str, ...]] = ("x", "weight", "bias")

    x: Tensor  # [T, K]
    weight: Tensor  # [N, K]
    bias: Tensor | None  # [N]
    out: Tensor  # [T, N]
    # The purpose of the product in any layer, such as "attn_qkv".  Products with the same x and
    # role may be joined, and reports add up products with the same role.
    role: str
    precision: Precision = Precision.ROW8


# --- Attention ------------------------------------------------------------------------------------


class Rope(Op):
    """Rotate pairs of each head by ``position * frequencies``, then multiply by *magnitude*.

    Elements of a head that are in no pair are copied unchanged.
    """

    READS: ClassVar[tuple[str, ...]] = ("x", "frequencies")

    x: Tensor  # [T, heads * W]
    frequencies: Tensor  # [rotated / 2] radians per position
    out: Tensor
    heads: int
    pairing: Pairing
    magnitude: float = 1.0


class Attention(Op):
    """Append k and v to the states, then attend: ``out = softmax(scale * q @ k.T) @ v``.

    A row attends to the positions of its sequence up to its own; with a *window*, only to the last
    *window* of these.  A sink is an extra logit of a head, whose value vector is 0.
    """

    READS: ClassVar[tuple[str, ...]] = ("q", "k", "v", "sinks")
    STATES: ClassVar[tuple[str, ...]] = ("keys", "values")

    q: Tensor  # [T, H * W]
    k: Tensor  # [T, G * W]
    v: Tensor  # [T, G * W]
    keys: Tensor  # state [P, G * W]
    values: Tensor  # state [P, G * W]
    out: Tensor  # [T, H * W]
    heads: int
    kv_heads: int
    scale: float
    sinks: Tensor | None = None  # [H]
    window: int = 0  # positions, including the row's own; 0 means no limit
    softcap: float = 0.0  # cap of scaled scores: softcap * tanh(score / softcap); 0 disables it
    temperature: tuple[float, int] | None = None  # (b, n): q *= 1 + b log(1 + position // n)


class EncoderAttention(Op):
    """Bidirectional attention without states: ``out = softmax(scale * q @ k.T) @ v``.

    A row attends to all rows of its sequence in the run, including later ones.
    """

    READS: ClassVar[tuple[str, ...]] = ("q", "k", "v")

    q: Tensor  # [T, H * W]
    k: Tensor  # [T, G * W]
    v: Tensor  # [T, G * W]
    out: Tensor  # [T, H * W]
    heads: int
    kv_heads: int
    scale: float


# --- Mixtures of experts --------------------------------------------------------------------------


class Route(Op):
    """Choose the experts of each row, largest score first, and compute their weights.

    *bias* is added to the scores only for the choice, and does not affect the weights.
    """

    READS: ClassVar[tuple[str, ...]] = ("scores", "bias")
    WRITES: ClassVar[tuple[str, ...]] = ("experts", "weights")

    scores: Tensor  # [T, E]
    experts: Tensor  # i32 [T, K]
    weights: Tensor  # [T, K]
    gating: Gating
    normalise: bool  # divide the weights of a row by their sum before multiplying by *scale*
    scale: float = 1.0  # factor of the weights
    bias: Tensor | None = None  # [E]


class ExpertMatMul(Op):
    """``out[t, j] = weight[e] @ x[t, j] + bias[e]`` for each chosen expert ``e = experts[t, j]``.

    An x ``[T, n]`` is the input of all experts of a row.
    """

    READS: ClassVar[tuple[str, ...]] = ("x", "weight", "bias", "experts")

    x: Tensor  # [T, n] or [T, K, n]
    weight: Tensor  # [E, m, n]
    bias: Tensor | None  # [E, m]
    experts: Tensor  # i32 [T, K]
    out: Tensor  # [T, K, m]
    role: str  # see `MatMul`
    precision: Precision = Precision.ROW8


class WeightedSum(Op):
    """``out[t] = sum over j of weights[t, j] * x[t, j]``."""

    READS: ClassVar[tuple[str, ...]] = ("x", "weights")

    x: Tensor  # [T, K, D]
    weights: Tensor  # [T, K]
    out: Tensor  # [T, D]


# --- Recurrence -----------------------------------------------------------------------------------


class ShortConv(Op):
    """A causal convolution along the rows of a sequence, column by column, then an activation.

    ``out[t] = activation(sum over j of weight[:, j] * x[t - kernel_size + 1 + j] + bias)``.  The
    state is the last ``kernel_size - 1`` rows of x.
    """

    READS: ClassVar[tuple[str, ...]] = ("x", "weight", "bias")
    STATES: ClassVar[tuple[str, ...]] = ("state",)

    x: Tensor  # [T, C]
    weight: Tensor  # [C, kernel_size]
    bias: Tensor | None  # [C]
    state: Tensor  # [kernel_size - 1, C]
    out: Tensor  # [T, C]
    activation: Activation = Activation.NONE


class DeltaGates(Op):
    """``out_beta = sigmoid(beta)``; ``out_decay = rate * softplus(alpha + bias)``.

    *out_decay* is the logarithm of the decay.
    """

    READS: ClassVar[tuple[str, ...]] = ("beta", "alpha", "rate", "bias")
    WRITES: ClassVar[tuple[str, ...]] = ("out_beta", "out_decay")

    beta: Tensor  # [T, H]
    alpha: Tensor  # [T, H]
    rate: Tensor  # [H]
    bias: Tensor  # [H]
    out_beta: Tensor  # [T, H]
    out_decay: Tensor  # [T, H]


class GatedDeltaNet(Op):
    """For each head: ``S *= e^decay``; ``S += beta (v - S k) k^T``; ``out = scale S q``."""

    READS: ClassVar[tuple[str, ...]] = ("q", "k", "v", "beta", "decay")
    STATES: ClassVar[tuple[str, ...]] = ("state",)

    q: Tensor  # [T, G * W]
    k: Tensor  # [T, G * W]
    v: Tensor  # [T, H * W]
    beta: Tensor  # [T, H]
    decay: Tensor  # [T, H], logarithms
    state: Tensor  # [H, W (of v), W (of k)]
    out: Tensor  # [T, H * W]
    heads: int
    k_heads: int
    scale: float
    grouped: bool  # key head of head h: True is h // (H / G), False is h % G


# --- Results of passes ----------------------------------------------------------------------------


class Fused(Op):
    """Several ops that a device runs as one; *parts* lists them in order."""

    READS: ClassVar[tuple[str, ...]] = ("inputs",)
    WRITES: ClassVar[tuple[str, ...]] = ("outs",)
    STATES: ClassVar[tuple[str, ...]] = ("advances",)

    pattern: str  # name of the pass that joined the parts
    parts: tuple[Op, ...]
    inputs: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]
    advances: tuple[Tensor, ...] = ()


class Foreign(Op):
    """A part of the graph that a segment of another device runs, under the part's name."""

    READS: ClassVar[tuple[str, ...]] = ("inputs",)
    WRITES: ClassVar[tuple[str, ...]] = ("outs",)

    inputs: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]
