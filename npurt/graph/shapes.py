"""Check the shapes of each type of op."""

from collections.abc import Callable
from typing import Any

from npurt.graph import ops
from npurt.graph.tensor import Tensor, sizes

Rule = Callable[[Any], str | None]
_RULES: dict[type[ops.Op], Rule] = {}


def why_wrong(op: ops.Op) -> str | None:
    """Return None if the shapes of *op* fit together, else the reason why not."""
    return _RULES[type(op)](op)


def _rule(*kinds: type[ops.Op]) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def _same(*tensors: Tensor | None) -> str | None:
    """Return None if all tensors that are not None have the same shape, else an error."""
    given = [tensor for tensor in tensors if tensor is not None]
    if len({sizes(tensor) for tensor in given}) > 1:
        return "shapes differ: " + "; ".join(map(str, given))
    return None


def _is(tensor: Tensor | None, *shape: int | str) -> str | None:
    if tensor is not None and sizes(tensor) != shape:
        return f"{tensor} should be [{', '.join(map(str, shape))}]"
    return None


def _rows(tensor: Tensor) -> int | str:
    return sizes(tensor)[0]


def _first(*reasons: str | None) -> str | None:
    return next((reason for reason in reasons if reason), None)


def _divides(groups: int, tensor: Tensor) -> str | None:
    if groups < 1 or tensor.columns % groups:
        return f"{tensor} does not divide into {groups} equal groups"
    return None


@_rule(ops.Embedding)
def _embedding(op: ops.Embedding) -> str | None:
    return _is(op.out, _rows(op.tokens), op.weight.columns)


@_rule(ops.SelectRows)
def _select_rows(op: ops.SelectRows) -> str | None:
    return _is(op.out, "L", op.x.columns)


@_rule(ops.Split)
def _split(op: ops.Split) -> str | None:
    if sum(out.columns for out in op.outs) != op.x.columns:
        return f"the pieces have {sum(o.columns for o in op.outs)} columns, not {op.x.columns}"
    return _first(
        *(_divides(op.heads, out) for out in op.outs),
        *(_is(out, *sizes(op.x)[:-1], out.columns) for out in op.outs),
    )


@_rule(ops.Add, ops.Multiply)
def _elements(op: ops.Add | ops.Multiply) -> str | None:
    return _same(op.a, op.b, op.out)


@_rule(ops.Scale, ops.Softcap, ops.Copy)
def _one(op: ops.Scale | ops.Softcap | ops.Copy) -> str | None:
    return _same(op.x, op.out)


@_rule(ops.SigmoidGate)
def _sigmoid_gate(op: ops.SigmoidGate) -> str | None:
    if op.gate.columns == 1:
        return _first(_same(op.x, op.out), _is(op.gate, _rows(op.x), 1))
    return _same(op.x, op.gate, op.out)


@_rule(ops.GatedUnit)
def _gated_unit(op: ops.GatedUnit) -> str | None:
    return _same(op.gate, op.up, op.out)


@_rule(ops.RMSNorm)
def _rms_norm(op: ops.RMSNorm) -> str | None:
    return _first(
        _same(op.x, op.out), _divides(op.heads, op.x), _is(op.weight, op.x.columns // op.heads)
    )


@_rule(ops.LayerNorm)
def _layer_norm(op: ops.LayerNorm) -> str | None:
    return _first(_same(op.x, op.out), *(_is(t, op.x.columns) for t in (op.weight, op.bias)))


@_rule(ops.L2Norm)
def _l2_norm(op: ops.L2Norm) -> str | None:
    return _first(_same(op.x, op.out), _divides(op.heads, op.x))


@_rule(ops.GatedNorm)
def _gated_norm(op: ops.GatedNorm) -> str | None:
    return _first(
        _same(op.x, op.gate, op.out),
        _divides(op.heads, op.x),
        _is(op.weight, op.x.columns // op.heads),
    )


@_rule(ops.MatMul)
def _matmul(op: ops.MatMul) -> str | None:
    n = sizes(op.weight)[0]
    return _first(_is(op.weight, n, op.x.columns), _is(op.bias, n), _is(op.out, _rows(op.x), n))


@_rule(ops.Rope)
def _rope(op: ops.Rope) -> str | None:
    width = op.x.columns // op.heads
    if 2 * op.frequencies.columns > width:
        return f"{op.frequencies} rotates more than the {width} elements of a head"
    return _first(_same(op.x, op.out), _divides(op.heads, op.x))


@_rule(ops.Attention)
def _attention(op: ops.Attention) -> str | None:
    kv = op.k.columns
    return _first(
        _encoder_attention(op),
        _is(op.keys, "P", kv),
        _is(op.values, "P", kv),
        _is(op.sinks, op.heads),
    )


@_rule(ops.EncoderAttention)
def _encoder_attention(op: ops.EncoderAttention | ops.Attention) -> str | None:
    if op.heads % op.kv_heads:
        return f"{op.heads} heads do not share {op.kv_heads} key heads evenly"
    kv = op.q.columns // op.heads * op.kv_heads
    return _first(
        _same(op.q, op.out),
        _divides(op.heads, op.q),
        *(_is(tensor, _rows(op.q), kv) for tensor in (op.k, op.v)),
    )


@_rule(ops.Route)
def _route(op: ops.Route) -> str | None:
    chosen = op.experts.columns
    if not 0 < chosen <= op.scores.columns:
        return f"{chosen} of {op.scores.columns} experts cannot be chosen"
    return _first(
        _is(op.experts, _rows(op.scores), chosen),
        _is(op.weights, _rows(op.scores), chosen),
        _is(op.bias, op.scores.columns),
    )


@_rule(ops.ExpertMatMul)
def _expert_matmul(op: ops.ExpertMatMul) -> str | None:
    count, m = sizes(op.weight)[:2]
    chosen = (_rows(op.experts), op.experts.columns)
    inputs = (chosen if len(op.x.shape) == 3 else chosen[:1]) + (op.x.columns,)
    return _first(
        _is(op.weight, count, m, op.x.columns),
        _is(op.x, *inputs),
        _is(op.bias, count, m),
        _is(op.out, *chosen, m),
    )


@_rule(ops.WeightedSum)
def _weighted_sum(op: ops.WeightedSum) -> str | None:
    rows, chosen = _rows(op.weights), op.weights.columns
    return _first(_is(op.x, rows, chosen, op.x.columns), _is(op.out, rows, op.x.columns))


@_rule(ops.ShortConv)
def _short_conv(op: ops.ShortConv) -> str | None:
    columns, kernel_size = op.x.columns, op.weight.columns
    return _first(
        _same(op.x, op.out),
        _is(op.weight, columns, kernel_size),
        _is(op.bias, columns),
        _is(op.state, kernel_size - 1, columns),
    )


@_rule(ops.DeltaGates)
def _delta_gates(op: ops.DeltaGates) -> str | None:
    heads = op.beta.columns
    return _first(
        _same(op.beta, op.alpha, op.out_beta, op.out_decay),
        _is(op.rate, heads),
        _is(op.bias, heads),
    )


@_rule(ops.GatedDeltaNet)
def _gated_delta_net(op: ops.GatedDeltaNet) -> str | None:
    if op.heads % op.k_heads:
        return f"{op.heads} heads do not share {op.k_heads} key heads evenly"
    rows, width = _rows(op.v), op.v.columns // op.heads
    return _first(
        _same(op.v, op.out),
        _divides(op.heads, op.v),
        *(_is(tensor, rows, op.k_heads * width) for tensor in (op.q, op.k)),
        *(_is(tensor, rows, op.heads) for tensor in (op.beta, op.decay)),
        _is(op.state, op.heads, width, width),
    )


@_rule(ops.Fused)
def _fused(op: ops.Fused) -> str | None:
    return _first(*map(why_wrong, op.parts))


@_rule(ops.Foreign)
def _foreign(op: ops.Foreign) -> None:
    """Return None: the segment that runs the part has checked it."""
