"""Compute each op in numpy, by its equation.

Each function takes the op and the run, and returns one array for each tensor that the op writes.
It computes in the run's element type.
Sources: Zhang and Sennrich 2019 (RMSNorm), Su et al. 2021 (RoPE), Shazeer 2020 (gated units), Yang
et al. 2024 (gated delta net), Gemma 2 report 2024 (soft caps), gpt-oss model card 2025 (sinks).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import GraphError
from npurt.graph import ops
from npurt.graph.ops import Activation, Gating, Pairing
from npurt.graph.state import Run

Array = npt.NDArray[Any]
Meaning = Callable[[Any, Run], tuple[Array, ...]]
MEANING: dict[type[ops.Op], Meaning] = {}


def _meaning(kind: type[ops.Op]) -> Callable[[Meaning], Meaning]:
    def register(function: Meaning) -> Meaning:
        MEANING[kind] = function
        return function

    return register


def sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + e^-x)`` without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0, -x)), dtype=x.dtype)


def softmax(x: Array) -> Array:
    """Return the softmax over the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[x.dtype])(x))


def activate(x: Array, kind: Activation, alpha: float = 1.0) -> Array:
    """Return the activation of *x*; *alpha* multiplies the argument of the sigmoid in SiLU."""
    if kind is Activation.SILU:
        return x * sigmoid(alpha * x)
    if kind is Activation.GELU:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return np.asarray(0.5 * x * (1 + np.tanh(inner)), dtype=x.dtype)
    if kind is Activation.GELU_ERF:
        return np.asarray(0.5 * x * (1 + _erf(x / math.sqrt(2))), dtype=x.dtype)
    if kind is Activation.RELU_SQUARED:
        return np.asarray(np.maximum(x, 0) ** 2)
    return x


def _heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)  # -1 would fail without rows


def by_row(op: ops.Op, run: Run) -> tuple[Array, ...]:
    """Compute *op* row by row, so that a row's result does not depend on the number of rows.

    The order of sums in a BLAS product depends on the number of rows.  `ops.EncoderAttention` is
    computed for all rows at once, because its rows depend on the other rows of their sequence.
    """
    meaning = MEANING[type(op)]
    if len(run.rows) <= 1 or isinstance(op, ops.EncoderAttention):
        return meaning(op, run)
    rows = [meaning(op, row) for row in run.each_row(op)]
    return tuple(np.concatenate(parts) for parts in zip(*rows, strict=True))


# --- Rows -----------------------------------------------------------------------------------------


@_meaning(ops.Embedding)
def _embedding(op: ops.Embedding, run: Run) -> tuple[Array, ...]:
    rows = run.rows_of(op.weight, run[op.tokens])
    return (rows * op.scale,)


@_meaning(ops.SelectRows)
def _select_rows(op: ops.SelectRows, run: Run) -> tuple[Array, ...]:
    return (run[op.x][run.rows.wanted],)


@_meaning(ops.Copy)
def _copy(op: ops.Copy, run: Run) -> tuple[Array, ...]:
    return (run[op.x],)


@_meaning(ops.Split)
def _split(op: ops.Split, run: Run) -> tuple[Array, ...]:
    x = _heads(run[op.x], op.heads)
    cuts = np.cumsum([out.columns // op.heads for out in op.outs])[:-1]
    return tuple(part.reshape(len(x), -1) for part in np.split(x, cuts, axis=-1))


# --- Elements -------------------------------------------------------------------------------------


@_meaning(ops.Add)
def _add(op: ops.Add, run: Run) -> tuple[Array, ...]:
    return (run[op.a] + op.scale * run[op.b],)


@_meaning(ops.Multiply)
def _multiply(op: ops.Multiply, run: Run) -> tuple[Array, ...]:
    return (run[op.a] * run[op.b],)


@_meaning(ops.Scale)
def _scale(op: ops.Scale, run: Run) -> tuple[Array, ...]:
    return (op.factor * run[op.x],)


@_meaning(ops.Softcap)
def _softcap(op: ops.Softcap, run: Run) -> tuple[Array, ...]:
    cap = op.cap
    return (cap * np.tanh(run[op.x] / cap),)


@_meaning(ops.SigmoidGate)
def _sigmoid_gate(op: ops.SigmoidGate, run: Run) -> tuple[Array, ...]:
    return (run[op.x] * sigmoid(run[op.gate]),)


@_meaning(ops.GatedUnit)
def _gated_unit(op: ops.GatedUnit, run: Run) -> tuple[Array, ...]:
    gate = run[op.gate]
    if op.limit is not None:
        gate = np.minimum(gate, op.limit)
    active = activate(gate, op.activation, op.alpha)
    if op.up is None:
        return (active,)
    up = run[op.up]
    if op.limit is not None:
        up = np.clip(up, -op.limit, op.limit)
    return (active * (up + op.up_offset),)


# --- Norms ----------------------------------------------------------------------------------------


@_meaning(ops.RMSNorm)
def _rms_norm(op: ops.RMSNorm, run: Run) -> tuple[Array, ...]:
    x = _heads(run[op.x], op.heads)
    y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + op.eps)
    if op.weight is not None:
        y = y * (run[op.weight] + op.plus_one)
    return (y.reshape(run[op.x].shape),)


@_meaning(ops.LayerNorm)
def _layer_norm(op: ops.LayerNorm, run: Run) -> tuple[Array, ...]:
    x = run[op.x]
    x = x - x.mean(axis=-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + op.eps) * run[op.weight]
    return (y if op.bias is None else y + run[op.bias],)


@_meaning(ops.L2Norm)
def _l2_norm(op: ops.L2Norm, run: Run) -> tuple[Array, ...]:
    x = _heads(run[op.x], op.heads)
    y = x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + op.eps)
    return (y.reshape(run[op.x].shape),)


@_meaning(ops.GatedNorm)
def _gated_norm(op: ops.GatedNorm, run: Run) -> tuple[Array, ...]:
    x = _heads(run[op.x], op.heads)
    y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + op.eps)
    y = (y * run[op.weight]).reshape(run[op.x].shape)
    return (y * activate(run[op.gate], Activation.SILU),)


# --- Products -------------------------------------------------------------------------------------


@_meaning(ops.MatMul)
def _matmul(op: ops.MatMul, run: Run) -> tuple[Array, ...]:
    y = run[op.x] @ run[op.weight].T
    return (y if op.bias is None else y + run[op.bias],)


# --- Attention ------------------------------------------------------------------------------------


@_meaning(ops.Rope)
def _rope(op: ops.Rope, run: Run) -> tuple[Array, ...]:
    x = _heads(run[op.x], op.heads)
    rates = run[op.frequencies].astype(np.float64)
    angles = run.rows.positions[:, None, None] * rates
    cos = (np.cos(angles) * op.magnitude).astype(run.dtype)
    sin = (np.sin(angles) * op.magnitude).astype(run.dtype)
    pairs = len(rates)
    halves = op.pairing is Pairing.HALVES
    first = slice(0, pairs) if halves else slice(0, 2 * pairs, 2)
    second = slice(pairs, 2 * pairs) if halves else slice(1, 2 * pairs, 2)
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return (y.reshape(run[op.x].shape),)


@_meaning(ops.Attention)
def _attention(op: ops.Attention, run: Run) -> tuple[Array, ...]:
    q = _heads(run[op.q], op.heads)
    if op.temperature is not None:
        slope, length = op.temperature
        factor = 1 + slope * np.log1p(run.rows.positions // length)
        q = q * factor.astype(run.dtype)[:, None, None]
    out = np.empty_like(q)
    for sequence, index, *_ in run.rows.by_sequence():
        start = int(run.rows.positions[index[0]])
        keys = run.states.append(sequence, op.keys, start, run[op.k][index])
        values = run.states.append(sequence, op.values, start, run[op.v][index])
        hidden = _hidden(op, run.rows.positions[index], len(keys))
        k = _heads(keys.astype(run.dtype), op.kv_heads)
        v = _heads(values.astype(run.dtype), op.kv_heads)
        for head in range(op.heads):
            group = head // (op.heads // op.kv_heads)
            scores = q[index, head] @ k[:, group].T * op.scale
            if op.softcap:
                scores = op.softcap * np.tanh(scores / op.softcap)
            scores[hidden] = -np.inf
            sink = None if op.sinks is None else run[op.sinks][head]
            out[index, head] = _weights(scores, sink) @ v[:, group]
    return (out.reshape(run[op.q].shape),)


@_meaning(ops.EncoderAttention)
def _encoder_attention(op: ops.EncoderAttention, run: Run) -> tuple[Array, ...]:
    q = _heads(run[op.q], op.heads)
    out = np.empty_like(q)
    for _, index, *_ in run.rows.by_sequence():
        k, v = (_heads(run[tensor][index], op.kv_heads) for tensor in (op.k, op.v))
        for head in range(op.heads):
            group = head // (op.heads // op.kv_heads)
            scores = q[index, head] @ k[:, group].T * op.scale
            out[index, head] = softmax(scores) @ v[:, group]
    return (out.reshape(run[op.q].shape),)


def _hidden(op: ops.Attention, positions: Array, count: int) -> Array:
    """Return a mask ``[T, P]``: True if a row does not attend to a position."""
    distance = positions[:, None] - np.arange(count)
    hidden: Array = distance < 0
    return hidden | (distance >= op.window) if op.window else hidden


def _weights(scores: Array, sink: Array | None) -> Array:
    if sink is None:
        return softmax(scores)
    column = np.full((len(scores), 1), sink, scores.dtype)
    return softmax(np.concatenate([scores, column], axis=1))[:, :-1]


# --- Mixtures of experts --------------------------------------------------------------------------


@_meaning(ops.Route)
def _route(op: ops.Route, run: Run) -> tuple[Array, ...]:
    scores = run[op.scores]
    likely = scores
    if op.gating is Gating.SOFTMAX:
        likely = softmax(scores)
    elif op.gating is Gating.SIGMOID:
        likely = sigmoid(scores)
    preference = likely if op.bias is None else likely + run[op.bias]
    order = np.argsort(-preference, axis=-1, kind="stable")[:, : op.experts.columns]
    weights = np.take_along_axis(likely, order, axis=-1)
    if op.gating is Gating.SOFTMAX_CHOSEN:
        weights = softmax(weights)
    if op.normalise:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return order.astype(np.int32), weights * op.scale


@_meaning(ops.ExpertMatMul)
def _expert_matmul(op: ops.ExpertMatMul, run: Run) -> tuple[Array, ...]:
    x, experts, weight = run[op.x], run[op.experts], run[op.weight]
    if x.ndim == 2:
        x = np.broadcast_to(x[:, None], (*experts.shape, x.shape[1]))
    out = np.empty((*experts.shape, weight.shape[1]), run.dtype)
    for expert in np.unique(experts):
        chosen = experts == expert
        out[chosen] = x[chosen] @ weight[expert].T
        if op.bias is not None:
            out[chosen] += run[op.bias][expert]
    return (out,)


@_meaning(ops.WeightedSum)
def _weighted_sum(op: ops.WeightedSum, run: Run) -> tuple[Array, ...]:
    return (np.einsum("tkd,tk->td", run[op.x], run[op.weights]),)


# --- Recurrence -----------------------------------------------------------------------------------


@_meaning(ops.ShortConv)
def _short_conv(op: ops.ShortConv, run: Run) -> tuple[Array, ...]:
    x, weight = run[op.x], run[op.weight]
    kernel_size = op.weight.columns
    out = np.empty_like(x)
    for sequence, index, *_ in run.rows.by_sequence():
        held = run.states.of(sequence)
        seen = np.concatenate([held[op.state.name].astype(run.dtype), x[index]])
        out[index] = sum(seen[j : j + len(index)] * weight[:, j] for j in range(kernel_size))
        held[op.state.name] = seen[len(index) :].astype(held[op.state.name].dtype)
    if op.bias is not None:
        out = out + run[op.bias]
    return (activate(out, op.activation),)


@_meaning(ops.DeltaGates)
def _delta_gates(op: ops.DeltaGates, run: Run) -> tuple[Array, ...]:
    inner = run[op.alpha] + run[op.bias]
    return sigmoid(run[op.beta]), run[op.rate] * np.logaddexp(inner, 0)


@_meaning(ops.GatedDeltaNet)
def _gated_delta_net(op: ops.GatedDeltaNet, run: Run) -> tuple[Array, ...]:
    of = np.arange(op.heads)
    of = of // (op.heads // op.k_heads) if op.grouped else of % op.k_heads
    q, k = (_heads(run[tensor], op.k_heads)[:, of] for tensor in (op.q, op.k))
    v, beta, decay = _heads(run[op.v], op.heads), run[op.beta], np.exp(run[op.decay])
    out = np.empty_like(v)
    for sequence, index, *_ in run.rows.by_sequence():
        held = run.states.of(sequence)
        state = held[op.state.name].astype(run.dtype)
        for t in index:
            state = state * decay[t][:, None, None]
            wrong = v[t] - np.einsum("hvk,hk->hv", state, k[t])
            state = state + np.einsum("hv,hk->hvk", beta[t][:, None] * wrong, k[t])
            out[t] = op.scale * np.einsum("hvk,hk->hv", state, q[t])
        held[op.state.name] = state.astype(held[op.state.name].dtype)
    return (out.reshape(run[op.v].shape),)


# --- Results of passes ----------------------------------------------------------------------------


@_meaning(ops.Fused)
def _fused(op: ops.Fused, run: Run) -> tuple[Array, ...]:
    made: dict[str, Array] = {}
    for part in op.parts:
        results = MEANING[type(part)](part, run)
        made |= {t.name: value for t, value in zip(part.writes, results, strict=True)}
        run.values |= made
    for name in made:
        del run.values[name]
    return tuple(made[tensor.name] for tensor in op.outs)


def rotations(
    radians: npt.NDArray[np.float64], magnitude: float, positions: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return cos and sin, float32 ``[positions, len(radians)]``, times *magnitude*."""
    cos = np.empty((positions, len(radians)), np.float32)
    sin = np.empty_like(cos)
    for start in range(0, positions, 4096):  # the float64 angles of a long context are large
        at = np.arange(start, min(start + 4096, positions), dtype=np.float64)
        angles = at[:, None] * radians
        cos[start : start + len(at)] = np.cos(angles) * magnitude
        sin[start : start + len(at)] = np.sin(angles) * magnitude
    return cos, sin


@_meaning(ops.Foreign)
def _foreign(op: ops.Foreign, run: Run) -> tuple[Array, ...]:
    raise GraphError(
        f"the part {op.name} runs on another device, and the interpreter has no function for it",
        remedy="pass a function for npurt.graph.ops.Foreign in `kernels`",
    )
