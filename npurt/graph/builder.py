"""Build a graph op by op: each method adds an op and returns the tensor that the op writes.

An op and the tensor that it writes have the same name.
"""

from dataclasses import replace
from typing import Any

from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.ops import Activation, Gating, Pairing, Precision
from npurt.graph.tensor import POSITIONS, ROWS, SELECTED, Dim, Kind, Tensor


class Builder:
    """A graph under construction.

    Args:
        name: The name of the graph, such as the name of the architecture.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._ops: list[ops.Op] = []

    def build(self) -> Graph:
        """Return the graph.

        Raises:
            GraphError: The graph is not valid; see `Graph.check`.
        """
        return Graph(self.name, tuple(self._ops)).check()

    # --- Tensors --------------------------------------------------------------------------------

    def tokens(self) -> Tensor:
        """Return the input of token ids ``[T]``."""
        return Tensor("tokens", (ROWS,), "i32", Kind.INPUT)

    def indices(self, name: str) -> Tensor:
        """Return an input of integers ``[T]``, to be used as indices in `embedding`."""
        return Tensor(name, (ROWS,), "i32", Kind.INPUT)

    def input(self, name: str, columns: Dim) -> Tensor:
        """Return an input of rows ``[T, columns]``."""
        return Tensor(name, (ROWS, columns), kind=Kind.INPUT)

    def constant(self, name: str, *shape: Dim, dtype: str = "f32") -> Tensor:
        """Return a weight of the model."""
        return Tensor(name, shape, dtype, Kind.WEIGHT)

    def table(self, name: str, size: int) -> Tensor:
        """Return a vector that is computed when the model is loaded."""
        return Tensor(name, (Dim("R", size),), "f64", Kind.TABLE)

    def _columns(self, name: str, like: Tensor, letter: str, size: int) -> Tensor:
        return Tensor(name, (*like.shape[:-1], Dim(letter, size)))

    def _like(self, name: str, x: Tensor) -> Tensor:
        return Tensor(name, x.shape)

    def _add(self, op: ops.Op) -> Tensor:
        self._ops.append(op)
        (made,) = op.writes
        return made

    def output(self, x: Tensor, name: str | None = None) -> Tensor:
        """Make *x*, the result of the last op, an output of the graph; return the output."""
        last = self._ops[-1]
        assert last.writes == (x,), "only the last op's result can become an output"
        made = replace(x, kind=Kind.OUTPUT, name=name or x.name)
        self._ops[-1] = replace(last, out=made, name=made.name)  # type: ignore[call-arg]
        return made

    # --- Rows -----------------------------------------------------------------------------------

    def embedding(self, name: str, tokens: Tensor, weight: Tensor, scale: float = 1.0) -> Tensor:
        """Look up the rows *tokens* of *weight*, times *scale*."""
        out = Tensor(name, (*tokens.shape, weight.shape[-1]))
        return self._add(ops.Embedding(name, tokens, weight, out, scale))

    def select_rows(self, name: str, x: Tensor) -> Tensor:
        """Select the rows whose logits are computed."""
        return self._add(ops.SelectRows(name, x, Tensor(name, (SELECTED, *x.shape[1:]))))

    def copy(self, name: str, x: Tensor) -> Tensor:
        """Copy *x* to an output of the graph called *name*."""
        return self._add(ops.Copy(name, x, replace(x, name=name, kind=Kind.OUTPUT)))

    def split(self, x: Tensor, names: dict[str, int], heads: int = 1) -> tuple[Tensor, ...]:
        """Split the columns of *x* into pieces, in each of *heads* groups of columns.

        Args:
            names: The names of the pieces, with their total columns.
        """
        outs = tuple(self._columns(name, x, "N", size) for name, size in names.items())
        self._ops.append(ops.Split(f"{x.name}.split", x, outs, heads))
        return outs

    # --- Elements -------------------------------------------------------------------------------

    def add(self, name: str, a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
        """Compute ``a + scale * b``."""
        return self._add(ops.Add(name, a, b, self._like(name, a), scale))

    def multiply(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Compute ``a * b``."""
        return self._add(ops.Multiply(name, a, b, self._like(name, a)))

    def scale(self, name: str, x: Tensor, factor: float) -> Tensor:
        """Compute ``factor * x``."""
        return self._add(ops.Scale(name, x, self._like(name, x), factor))

    def softcap(self, name: str, x: Tensor, cap: float) -> Tensor:
        """Compute ``cap * tanh(x / cap)``."""
        return self._add(ops.Softcap(name, x, self._like(name, x), cap))

    def sigmoid_gate(self, name: str, x: Tensor, gate: Tensor) -> Tensor:
        """Compute ``x * sigmoid(gate)``."""
        return self._add(ops.SigmoidGate(name, x, gate, self._like(name, x)))

    def gated_unit(
        self,
        name: str,
        gate: Tensor,
        up: Tensor | None,
        activation: Activation = Activation.SILU,
        **conventions: Any,
    ) -> Tensor:
        """Compute ``activation(gate) * up``; *conventions* are fields of `ops.GatedUnit`."""
        out = self._like(name, gate)
        return self._add(ops.GatedUnit(name, gate, up, out, activation, **conventions))

    # --- Norms ----------------------------------------------------------------------------------

    def rms_norm(
        self,
        name: str,
        x: Tensor,
        weight: Tensor | None,
        eps: float,
        *,
        heads: int = 1,
        plus_one: bool = False,
    ) -> Tensor:
        """Apply an RMS norm to each of *heads* groups of columns of *x*."""
        return self._add(ops.RMSNorm(name, x, weight, self._like(name, x), eps, heads, plus_one))

    def layer_norm(
        self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        """Apply a LayerNorm: normalise rows to mean 0 and variance 1, then scale and shift."""
        return self._add(ops.LayerNorm(name, x, weight, bias, self._like(name, x), eps))

    def l2_norm(self, name: str, x: Tensor, eps: float, heads: int) -> Tensor:
        """Scale each of *heads* groups of columns to length 1."""
        return self._add(ops.L2Norm(name, x, self._like(name, x), eps, heads))

    def gated_norm(
        self, name: str, x: Tensor, gate: Tensor, weight: Tensor, eps: float, heads: int
    ) -> Tensor:
        """Apply an RMS norm to each of *heads* groups of columns, then multiply by silu(gate)."""
        return self._add(ops.GatedNorm(name, x, gate, weight, self._like(name, x), eps, heads))

    # --- Products -------------------------------------------------------------------------------

    def matmul(
        self,
        name: str,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        role: str = "",
        precision: Precision = Precision.ROW8,
    ) -> Tensor:
        """Compute ``x @ weight.T + bias``; *role* defaults to the last part of *name*."""
        out = Tensor(name, (*x.shape[:-1], weight.shape[0]))
        return self._add(ops.MatMul(name, x, weight, bias, out, role or _last(name), precision))

    # --- Attention ------------------------------------------------------------------------------

    def rope(
        self,
        name: str,
        x: Tensor,
        frequencies: Tensor,
        heads: int,
        pairing: Pairing,
        magnitude: float = 1.0,
    ) -> Tensor:
        """Apply a rotary embedding to each of *heads* heads, by the position of the row."""
        return self._add(
            ops.Rope(name, x, frequencies, self._like(name, x), heads, pairing, magnitude)
        )

    def attention(
        self,
        name: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: int,
        kv_heads: int,
        scale: float,
        **conventions: Any,
    ) -> Tensor:
        """Compute causal attention; *conventions* are fields of `ops.Attention`."""
        keys, values = (
            Tensor(f"{name}.{state}", (POSITIONS, k.shape[-1]), "f16", Kind.STATE)
            for state in ("keys", "values")
        )
        out = self._like(name, q)
        return self._add(
            ops.Attention(name, q, k, v, keys, values, out, heads, kv_heads, scale, **conventions)
        )

    def encoder_attention(
        self, name: str, qkv: tuple[Tensor, Tensor, Tensor], heads: int, kv_heads: int, scale: float
    ) -> Tensor:
        """Compute bidirectional attention over the rows of each sequence in the run."""
        out = self._like(name, qkv[0])
        return self._add(ops.EncoderAttention(name, *qkv, out, heads, kv_heads, scale))

    # --- Mixtures of experts --------------------------------------------------------------------

    def route(
        self, name: str, scores: Tensor, top_k: int, gating: Gating, **conventions: Any
    ) -> tuple[Tensor, Tensor]:
        """Choose *top_k* experts per row; return their numbers and weights, each ``[T, K]``."""
        shape = (scores.shape[0], Dim("K", top_k))
        experts = Tensor(f"{name}.experts", shape, "i32")
        weights = Tensor(f"{name}.weights", shape)
        self._ops.append(ops.Route(name, scores, experts, weights, gating, **conventions))
        return experts, weights

    def expert_matmul(
        self,
        name: str,
        x: Tensor,
        weight: Tensor,
        experts: Tensor,
        bias: Tensor | None = None,
        role: str = "",
        precision: Precision = Precision.ROW8,
    ) -> Tensor:
        """Multiply each row by the matrices of its experts."""
        out = Tensor(name, (*experts.shape, weight.shape[1]))
        op = ops.ExpertMatMul(name, x, weight, bias, experts, out, role or _last(name), precision)
        return self._add(op)

    def weighted_sum(self, name: str, x: Tensor, weights: Tensor) -> Tensor:
        """Add up the results of a row's experts."""
        out = Tensor(name, (x.shape[0], x.shape[-1]))
        return self._add(ops.WeightedSum(name, x, weights, out))

    # --- Recurrence -----------------------------------------------------------------------------

    def short_conv(
        self,
        name: str,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: Activation = Activation.NONE,
    ) -> Tensor:
        """Compute a causal convolution of each column along the rows of a sequence."""
        shape = (Dim("C-1", weight.columns - 1), x.shape[-1])
        state = Tensor(f"{name}.state", shape, kind=Kind.STATE)
        out = self._like(name, x)
        return self._add(ops.ShortConv(name, x, weight, bias, state, out, activation))

    def delta_gates(
        self, name: str, beta: Tensor, alpha: Tensor, rate: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute and return beta and the logarithm of the decay."""
        outs = self._like(f"{name}.beta", beta), self._like(f"{name}.decay", alpha)
        self._ops.append(ops.DeltaGates(name, beta, alpha, rate, bias, *outs))
        return outs

    def gated_delta_net(
        self,
        name: str,
        qkv: tuple[Tensor, Tensor, Tensor],
        gates: tuple[Tensor, Tensor],
        heads: int,
        k_heads: int,
        *,
        grouped: bool,
    ) -> Tensor:
        """Compute a gated delta net; *gates* are the results of `delta_gates`."""
        width = qkv[2].columns // heads
        shape = (Dim("H", heads), Dim("Wv", width), Dim("Wk", width))
        state = Tensor(f"{name}.state", shape, kind=Kind.STATE)
        out = self._like(name, qkv[2])
        return self._add(
            ops.GatedDeltaNet(name, *qkv, *gates, state, out, heads, k_heads, width**-0.5, grouped)
        )


def _last(name: str) -> str:
    return name.rpartition(".")[2]
