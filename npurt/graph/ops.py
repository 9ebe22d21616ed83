"""The operations of a graph, as data.

Each op names its tensors and its conventions.  Its function in `meaning` is what it computes;
`cost` is its work.  `READS`, `WRITES` and `STATES` name the fields that hold tensors; a field may
hold None, one tensor, or a tuple of them.  Letters: T rows, D width, H heads, G key heads, W head
width, F feed-forward width, E experts, K experts of a token, V vocabulary, P positions.
"""

from enum import Enum
from functools import cached_property
from typing import ClassVar

from npurt.graph.data import Data
from npurt.graph.tensor import Tensor


class Activation(Enum):
    """A function of each element."""

    NONE = "none"
    SILU = "silu"  # x * sigmoid(x)
    GELU = "gelu"  # tanh form: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
    GELU_ERF = "gelu_erf"  # 0.5 x (1 + erf(x / sqrt(2)))
    RELU_SQUARED = "relu_squared"  # max(x, 0)^2


class Pairing(Enum):
    """Which elements of a head rotate together."""

    ADJACENT = "adjacent"  # (2i, 2i + 1)
    HALVES = "halves"  # (i, i + rotated / 2)


class Gating(Enum):
    """How the scores of a router become weights of experts."""

    SOFTMAX = "softmax"  # over all experts, then the best are chosen
    SIGMOID = "sigmoid"  # of each score by itself
    SOFTMAX_CHOSEN = "softmax_chosen"  # over the chosen experts only


class Precision(Enum):
    """How far a device may round the operands of a product."""

    ROW8 = "row8"  # activations to int8 with one scale a row, or better
    BLOCK8 = "block8"  # activations to int8 with a scale for each 32 columns, or to int16
    INT16 = "int16"  # activations to int16
    EXACT = "exact"  # weights as the file has them: the product stays on the host


class Op(Data):
    """Base class.

    Attributes:
        name: The op's own, such as ``blk.0.attn_norm``.
    """

    READS: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[tuple[str, ...]] = ("out",)
    STATES: ClassVar[tuple[str, ...]] = ()  # read and written

    name: str

    @cached_property
    def reads(self) -> tuple[Tensor, ...]:
        """Tensors that must exist before the op runs, states excluded."""
        return self._tensors(self.READS)

    @cached_property
    def writes(self) -> tuple[Tensor, ...]:
        """Tensors that the op makes."""
        return self._tensors(self.WRITES)

    @cached_property
    def states(self) -> tuple[Tensor, ...]:
        """States that the op reads and advances."""
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
    """Keep the rows whose logits are wanted, in order."""

    READS: ClassVar[tuple[str, ...]] = ("x",)

    x: Tensor  # [T, D]
    out: Tensor  # [L, D]


class Copy(Op):
    """``out = x``, for an output that is also used inside the graph."""

    READS: ClassVar[tuple[str, ...]] = ("x",)

    x: Tensor
    out: Tensor


class Split(Op):
    """Cut the columns of each of *heads* equal groups into one piece for each output."""

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
    """``out = x * sigmoid(gate)``; a gate of one column goes with all columns of x."""

    READS: ClassVar[tuple[str, ...]] = ("x", "gate")

    x: Tensor  # [T, n]
    gate: Tensor  # [T, n] or [T, 1]
    out: Tensor


class GatedUnit(Op):
    """``out = activation(gate) * (up + up_offset)``, of clamped inputs when *limit* is given.

    The gate is clamped from above, *up* from both sides.  *alpha* multiplies the argument of the
    sigmoid in SiLU.  Without *up*, ``out = activation(gate)``.
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
    """``out = x / sqrt(mean(x^2) + eps) * weight``, over each of *heads* groups of columns."""

    READS: ClassVar[tuple[str, ...]] = ("x", "weight")

    x: Tensor  # [T, n]
    weight: Tensor | None  # [n / heads]
    out: Tensor
    eps: float
    heads: int = 1
    plus_one: bool = False  # the weight is stored without the 1 that is added to it


class LayerNorm(Op):
    """``out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias``, over each row."""

    READS: ClassVar[tuple[str, ...]] = ("x", "weight", "bias")

    x: Tensor  # [T, n]
    weight: Tensor  # [n]
    bias: Tensor | None  # [n]
    out: Tensor
    eps: float


class L2Norm(Op):
    """``out = x / sqrt(sum(x^2) + eps)``, over each of *heads* equal groups of columns."""

    READS: ClassVar[tuple[str, ...]] = ("x",)

    x: Tensor
    out: Tensor
    eps: float
    heads: int = 1


class GatedNorm(Op):
    """``out = RMSNorm(x) * silu(gate)``, the norm over each of *heads* equal groups of columns."""

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
    role: str  # its purpose in any layer, such as "attn_qkv": products with one x and one role
    # may run as one, and are one line of a report
    precision: Precision = Precision.ROW8


# --- Attention ------------------------------------------------------------------------------------


class Rope(Op):
    """Rotate pairs of each head by ``position * frequencies``; the result is times *magnitude*.

    Elements of a head beyond the rotated ones stay as they are.
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

    A row sees its own sequence up to its own position; with a *window*, only the last so many
    positions.  A sink is one more logit of a head; its value vector is zero.
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
    window: int = 0  # positions, the row's own included; 0: all
    softcap: float = 0.0  # of scaled scores; 0: none
    temperature: tuple[float, int] | None = None  # (b, n): q *= 1 + b log(1 + position // n)


class EncoderAttention(Op):
    """``out = softmax(scale * q @ k.T) @ v``; nothing is kept for later runs.

    A row sees all rows that its sequence has in the run, those after it too.
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
    """Choose the best experts of each row, best first, and their weights.

    The selection *bias* is added for the choice, not to the weights.
    """

    READS: ClassVar[tuple[str, ...]] = ("scores", "bias")
    WRITES: ClassVar[tuple[str, ...]] = ("experts", "weights")

    scores: Tensor  # [T, E]
    experts: Tensor  # i32 [T, K]
    weights: Tensor  # [T, K]
    gating: Gating
    normalise: bool  # weights of a row add up to 1 before *scale*
    scale: float = 1.0
    bias: Tensor | None = None  # [E]


class ExpertMatMul(Op):
    """``out[t, j] = weight[e] @ x[t, j] + bias[e]`` for each chosen expert ``e = experts[t, j]``.

    An x without the axis of experts is the same for all of them.
    """

    READS: ClassVar[tuple[str, ...]] = ("x", "weight", "bias", "experts")

    x: Tensor  # [T, n] or [T, K, n]
    weight: Tensor  # [E, m, n]
    bias: Tensor | None  # [E, m]
    experts: Tensor  # i32 [T, K]
    out: Tensor  # [T, K, m]
    role: str  # as of `MatMul`
    precision: Precision = Precision.ROW8


class WeightedSum(Op):
    """``out[t] = sum over j of weights[t, j] * x[t, j]``."""

    READS: ClassVar[tuple[str, ...]] = ("x", "weights")

    x: Tensor  # [T, K, D]
    weights: Tensor  # [T, K]
    out: Tensor  # [T, D]


# --- Recurrence -----------------------------------------------------------------------------------


class ShortConv(Op):
    """A causal convolution of each column with the rows before it, then an activation.

    ``out[t] = activation(sum over j of weight[:, j] * x[t - kernel_size + 1 + j] + bias)``; the
    state holds the last ``kernel_size - 1`` rows of x.
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
    """``out_beta = sigmoid(beta)``; ``out_decay = rate * softplus(alpha + bias)``, a logarithm."""

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
    grouped: bool  # head h has key head h // (H / G), not h % G


# --- Made by passes -------------------------------------------------------------------------------


class Fused(Op):
    """Several ops that a device does as one: its *parts*, in order."""

    READS: ClassVar[tuple[str, ...]] = ("inputs",)
    WRITES: ClassVar[tuple[str, ...]] = ("outs",)
    STATES: ClassVar[tuple[str, ...]] = ("advances",)

    pattern: str  # the pass that made it
    parts: tuple[Op, ...]
    inputs: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]
    advances: tuple[Tensor, ...] = ()
