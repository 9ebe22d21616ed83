"""Lower a graph to programs: add the CPU's ops for each op of the graph.

`npurt.graph.passes` first joins ops of the graph that the CPU computes as one op.
`npurt.cpu.lowering.buffers` assigns buffers to tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from npurt.cpu.lowering.bound import Bound, Columns
from npurt.cpu.lowering.buffers import (
    Buffers,
    attention_inputs,
    attention_of,
    row_multiplier_of,
    unsupported,
)
from npurt.cpu.lowering.steps import Steps
from npurt.cpu.pool.checked import NamedWeight
from npurt.cpu.pool.engine import Input, empty
from npurt.cpu.pool.operands import GROUP, SILU, Convolution, Heads, Routing, UnitParameters
from npurt.cpu.pool.program import Program
from npurt.device.delta import DeltaNet
from npurt.device.device import F32
from npurt.errors import UnsupportedOp
from npurt.graph import ops, passes
from npurt.graph.graph import Graph
from npurt.graph.ops import Fused, Op, Pairing
from npurt.graph.tensor import SELECTED, Kind, Tensor

MAX_WEIGHTS = 3  # weights per matmul op: the length of npurt_matmul.w


class Lowering:
    """Adds the ops of a graph, or of a part of one, to steps.

    Args:
        steps: The steps to add to.
        graph: The graph or part, before `npurt.graph.passes`.
        bound: The graph's weights and states in memory.
        inputs: Buffers ``[rows, columns]`` of the graph's inputs and of the embedding, by name.
        otherwise: Called with each op that has no kernel; must add a step that runs the op.  None
            raises `UnsupportedOp` instead.

    Attributes:
        values: The buffers of the tensors.
        output: The output of the graph if the last product or a cap of its result writes it, else
            None; `Steps.redirect` sets its buffer.
    """

    def __init__(
        self,
        steps: Steps,
        graph: Graph,
        bound: Bound,
        inputs: Mapping[str, F32],
        otherwise: Callable[[Op], None] | None = None,
    ) -> None:
        self._steps = steps
        self._bound = bound
        self._otherwise = otherwise
        self._graph = passes.apply(graph, passes.HOST)
        self.values = Buffers(self._graph, bound.weights, bound.rows, inputs)
        self._convolutions: dict[str, Convolution] = {}
        self._routings: dict[str, tuple[Routing, Input]] = {}
        self._logits = _logits(self._graph)
        away = (op for op in graph.ops if isinstance(op, ops.Foreign))
        crossing = graph.given | graph.wanted
        crossing |= {t.name for op in away for t in (*op.reads, *op.writes)}
        self._gathers = not any(
            t.name in crossing and (len(t.shape) == 3 or isinstance(op, ops.Route))
            for op in graph.ops
            for t in (*op.reads, *op.writes)
        )
        self.output: Tensor | None = None

    def add(self) -> None:
        """Add all ops.

        Raises:
            UnsupportedOp: The host has no kernel for an op, or for its conventions.
        """
        for index, op in enumerate(self._graph.ops):
            self.values.index = index
            if any(tensor in self.values for tensor in op.writes):
                continue  # the embedding: the caller fills its buffer
            lower = _LOWER.get(op.pattern if isinstance(op, Fused) else type(op).__name__)
            try:
                if lower is None:
                    raise unsupported(op, "the host has no kernel for it")
                lower(self, op)
            except UnsupportedOp:
                if self._otherwise is None:
                    raise
                self._otherwise(op)
                self.values.loose |= {tensor.name for tensor in op.writes}

    def _vector(self, tensor: Tensor) -> F32:
        """Return the float values of a weight that is not a matrix of a product."""
        return self._bound.vectors[tensor.name]

    def _input(self, op: Op, tensor: Tensor) -> Input:
        return self.values.input(op, tensor, self._quantise)

    def _quantise(self, value: Input) -> None:
        self._steps.host().add("quantise", Program.quant, value)

    # --- Ops ------------------------------------------------------------------------------------

    def _add_norm(self, op: Fused) -> None:
        *before, norm = op.parts
        assert isinstance(norm, ops.RMSNorm | ops.LayerNorm)
        centred = isinstance(norm, ops.LayerNorm)
        bias = norm.bias if isinstance(norm, ops.LayerNorm) else None
        if norm.weight is None or (isinstance(norm, ops.RMSNorm) and norm.plus_one):
            raise unsupported(op, "the host's norms need a weight without an offset")
        if len(norm.x.shape) == 3:
            raise unsupported(op, "the host normalises rows of a run, not of experts")
        add = next((part for part in before if isinstance(part, ops.Add)), None)
        selects = any(isinstance(part, ops.SelectRows) for part in before)
        x = before[0].reads[0] if before else norm.x
        if add is not None and selects and self.values.leaves(add.out):
            self._add(add)  # adds all rows, not only the selected ones
            x, add = add.out, None
        buffer = self.values.beside(op, [x])
        added, scale = None, 1.0
        if add is not None:
            self._require_last(op, add)
            added, scale = self.values.beside(op, [add.b]), add.scale
            self.values.put(add.out, self.values.columns(x))
        self._steps.host().add(
            "norm", Program.norm, buffer, self._vector(norm.weight), norm.eps,
            self.values.make_input(norm.out), add=added, scale=scale, gathers=selects,
            centred=centred, bias=self._vector(bias) if bias else None,
        )  # fmt: skip

    def _require_last(self, op: Op, add: ops.Add) -> None:
        """Raise UnsupportedOp if a later op reads ``add.a``, which the sum overwrites."""
        if self.values.is_read_after(add.a):
            raise unsupported(op, f"a later op reads {add.a.name}, which the sum overwrites")

    def _add(self, op: ops.Add) -> None:
        self._require_last(op, op)
        if len(op.out.shape) == 3:
            raise unsupported(op, "the host adds rows of a run, not of experts")
        added, x = self.values.beside(op, [op.b]), self.values.columns(op.a)
        if x.is_whole:
            out = self.values.shared_input(op.out, x.buffer)
            self._steps.host().add("sum", Program.sum, added, out, scale=op.scale)
            self.values.put(op.out, out)
        else:
            self._steps.host().add("sum", Program.sum_columns, added, x.view, scale=op.scale)
            self.values.put(op.out, x)

    def _scale(self, op: ops.Scale) -> None:
        self._cap_logits(op, factor=op.factor)

    def _softcap(self, op: ops.Softcap) -> None:
        self._cap_logits(op, cap=op.cap)

    def _cap_logits(self, op: ops.Scale | ops.Softcap, factor: float = 1.0, cap: float = 0) -> None:
        if op.x.name not in self._logits:
            raise unsupported(op, "the host scales and caps only logits")
        self._steps.cap_logits(self.values.beside(op, [op.x]), factor=factor, cap=cap)
        self.values.put(op.out, self.values.columns(op.x))
        if self.output == op.x:
            self.output = op.out

    def _products(self, op: Fused) -> None:
        first = op.parts[0]
        for start in range(0, len(op.parts), MAX_WEIGHTS):
            parts = op.parts[start : start + MAX_WEIGHTS]
            outs = [part.writes[0] for part in parts]
            weights = [self._bound.weights[part.reads[1].name] for part in parts]
            if isinstance(first, ops.ExpertMatMul):
                self._experts(op, first, weights, outs)
            elif isinstance(first, ops.MatMul):
                self._product(op, first, weights, outs)

    def _product(
        self, op: Op, first: ops.MatMul, weights: Sequence[NamedWeight], outs: Sequence[Tensor]
    ) -> None:
        if len(first.x.shape) == 3:
            raise unsupported(op, "the host multiplies rows of a run, not of experts")
        x = self._input(op, first.x)
        logits = len(outs) == 1 and outs[0].name in self._logits
        if logits:
            y, column = empty(1, outs[0].columns), 0
            self.values.put(outs[0], Columns(y, 0, outs[0].columns))
            self.output = outs[0]
        else:
            y, column = self.values.place(outs)
        selects = logits or outs[0].shape[0] == SELECTED
        self._steps.matmul(first.role, x, weights, y, selects=selects, column=column)

    def _experts(
        self, op: Op, first: ops.ExpertMatMul, stacks: Sequence[NamedWeight], outs: Sequence[Tensor]
    ) -> None:
        if first.experts.name not in self._routings:
            raise unsupported(op, "its rows are not gathered by expert")
        routing, copies = self._routings[first.experts.name]
        x = copies if len(first.x.shape) == 2 else self._input(op, first.x)
        y, column = self.values.place(outs, routing.top_k)
        self._steps.experts(first.role, x, stacks, y, routing, column=column)

    def _attention(self, op: Fused) -> None:
        attention = attention_of(op)
        rope, (q_norm, k_norm) = _rotation(op), _head_norms(op)
        if isinstance(attention, ops.EncoderAttention) and (q_norm or k_norm):
            raise unsupported(op, "the host does not normalise heads of encoders")
        gated = any(isinstance(part, ops.SigmoidGate) for part in op.parts)
        if gated != any(isinstance(part, ops.Split) for part in op.parts):
            raise unsupported(op, "its gates and queries are not side by side")
        qkv = self.values.beside(op, attention_inputs(op))
        kv = self._bound.kv[attention.name]
        table = kv.rotation
        rotated = table.cos.shape[1] if rope else 0
        heads = Heads(
            qkv=qkv,
            cos=table.cos[:, :rotated],
            sin=table.sin[:, :rotated],
            k_cache=kv.keys,
            v_cache=kv.values,
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            width=attention.q.columns // attention.heads,
            halves=rope is not None and rope.pairing is Pairing.HALVES,
            scale=attention.scale,
            gated=gated,
            q_norm=self._vector(q_norm.weight) if q_norm and q_norm.weight else None,
            k_norm=self._vector(k_norm.weight) if k_norm and k_norm.weight else None,
            eps=q_norm.eps if q_norm else 0.0,
            temperature=kv.temperature,
        )
        host, out = self._steps.host(), self.values.make_input(op.outs[0])
        if isinstance(attention, ops.Attention):
            heads = replace(
                heads,
                window=attention.window,
                softcap=attention.softcap,
                sinks=self._vector(attention.sinks) if attention.sinks else None,
            )
            host.add("rope", Program.rope, heads)
            host.add("attention", Program.attend, heads, out.values)
        else:
            host.add("attention", Program.encode, heads, out.values)
        if out.quantised:
            self._quantise(out)

    def _gated_unit(self, op: ops.GatedUnit) -> None:
        unit, row_multiplier = _unit(op), row_multiplier_of(op.out)
        both = self.values.beside(op, (op.gate, op.up) if op.up else (op.gate,))
        out = self.values.make_input(op.out, row_multiplier)
        self._steps.host().add(
            "activation", Program.unit, both, out, unit=unit, row_multiplier=row_multiplier
        )

    def _split(self, op: ops.Split) -> None:
        if op.heads > 1:
            raise unsupported(op, "the host splits heads only for gated attention")
        whole = self.values.columns(op.x)
        start = whole.start
        for out in op.outs:
            self.values.put(out, Columns(whole.buffer, start, out.columns))
            start += out.columns

    # --- Experts --------------------------------------------------------------------------------

    def _route(self, op: ops.Route) -> None:
        if op.gating is ops.Gating.SIGMOID or op.bias is not None:
            raise unsupported(op, "the host routes only by a softmax of scores without a bias")
        rows, top_k, experts = self._bound.rows, op.experts.columns, op.scores.columns
        found = [
            part.x
            for fused in self._graph.ops
            if isinstance(fused, Fused)
            for part in fused.parts
            if isinstance(part, ops.ExpertMatMul)
            if part.experts == op.experts and len(part.x.shape) == 2
        ]
        if not found or not self._gathers:
            raise unsupported(op, "another part of the graph uses the rows of its experts")
        x = found[0]
        quantised, int16 = self.values.codes(x)

        def make() -> tuple[Routing, Input]:
            return Routing(
                expert_weights=empty(rows, top_k),
                scatter_indices=empty(rows, top_k, np.int64),
                gather_indices=empty(rows, top_k, np.int64).reshape(-1),
                groups=empty(1, min(experts, rows * top_k), GROUP).reshape(-1),
                experts=experts,
            ), Input(rows * top_k, x.columns, quantised=quantised, int16=int16)

        kind, made = f"routes to {experts}, {x.columns}", [op.experts, op.weights]
        routing, copies = self._routings[op.experts.name] = self.values.own(
            kind, made, make, lambda pair: pair[0].expert_weights
        )
        scores = self.values.columns(op.scores).buffer
        host, rows_of = self._steps.host(), self._input(op, x)
        host.add(
            "route", Program.route, scores, routing, normed=op.normalise, scale=op.scale,
            over_chosen=op.gating is ops.Gating.SOFTMAX_CHOSEN,
        )  # fmt: skip
        host.add("route", Program.gather, rows_of, routing, copies)

    def _combination(self, op: Fused) -> None:
        total = next(part for part in op.parts if isinstance(part, ops.WeightedSum))
        gate = next((part for part in op.parts if isinstance(part, ops.SigmoidGate)), None)
        route = next((o for o in self._graph.ops if total.weights in o.writes), None)
        if not isinstance(route, ops.Route) or route.experts.name not in self._routings:
            raise unsupported(op, "its rows are not gathered by expert")
        routing, _ = self._routings[route.experts.name]
        self._steps.host().add(
            "weighted_sum",
            Program.weighted_sum,
            self.values.columns(total.x).buffer,
            routing,
            self.values.make(op.outs),
            shared=self.values.columns(gate.x).buffer if gate else None,
            gate=self.values.columns(gate.gate).view if gate else None,
        )

    # --- Recurrence -----------------------------------------------------------------------------

    def _short_convolution(self, op: Fused) -> None:
        split, _, conv, _ = op.parts
        assert isinstance(conv, ops.ShortConv)
        if conv.bias or conv.activation is not ops.Activation.NONE:
            raise unsupported(op, "the host's gated convolution has no bias and no activation")
        self._steps.host().add(
            "convolution",
            Program.shortconv,
            self.values.beside(op, split.reads),
            np.ascontiguousarray(self._vector(conv.weight).T),
            self._bound.convolved[conv.name],
            self.values.make_input(op.outs[0]),
        )

    def _delta_inputs(self, op: Fused) -> None:
        named = {type(part): part for part in op.parts}
        conv, gates, norm = (named[k] for k in (ops.ShortConv, ops.DeltaGates, ops.L2Norm))
        net = next((o for o in self._graph.ops
                    if isinstance(o, ops.GatedDeltaNet) if o.v in op.outs), None)  # fmt: skip
        assert isinstance(conv, ops.ShortConv)
        assert isinstance(gates, ops.DeltaGates)
        assert isinstance(norm, ops.L2Norm)
        if net is None:
            raise unsupported(op, "its delta net is not in this part of the graph")
        mixed = self.values.columns(conv.x)
        if mixed.start or conv.bias or conv.activation is not ops.Activation.SILU:
            raise unsupported(
                op, "the host's convolution reads first columns, has no bias, and ends with SiLU"
            )
        width = net.v.columns // net.heads
        out = self.values.make([net.q, net.k, net.v])
        out_gates = self.values.make([gates.out_beta, gates.out_decay])
        self._convolutions[net.name] = Convolution(
            x=mixed.buffer,
            gates=self.values.beside(op, (gates.beta, gates.alpha)),
            weight=np.ascontiguousarray(self._vector(conv.weight).T),
            rate=self._vector(gates.rate),
            bias=self._vector(gates.bias),
            stored_inputs=self._bound.recurrent[net.name].inputs,
            out=out,
            out_gates=out_gates,
            heads=net.heads,
            k_heads=net.k_heads,
            width=width,
            eps=norm.eps,
        )

    def _delta(self, op: ops.GatedDeltaNet) -> None:
        if op.name not in self._convolutions:
            raise unsupported(op, "no short convolution of the host comes before it")
        conv, held = self._convolutions[op.name], self._bound.recurrent[op.name]
        rows = len(conv.out)
        heads = conv.out.reshape(1, rows, -1, conv.width)
        q, k, v = np.split(heads, [conv.k_heads, 2 * conv.k_heads], axis=2)
        beta, decay = np.split(conv.out_gates[None], 2, axis=2)
        net = DeltaNet(
            q=q, k=k, v=v, decay=decay[..., None], beta=beta,
            out=self.values.make([op.out]).reshape(v.shape), state=held.array[0, 0],
            scale=op.scale, grouped=op.grouped,
        )  # fmt: skip
        self._steps.delta(conv, net, held)

    def _gated_norm(self, op: ops.GatedNorm) -> None:
        self._steps.host().add(
            "norm",
            Program.gate,
            self.values.columns(op.x).buffer,
            self.values.columns(op.gate).view,
            self._vector(op.weight),
            op.eps,
            self.values.make_input(op.out),
        )


_LOWER: dict[str, Callable[[Lowering, Any], None]] = {
    "add_norm": Lowering._add_norm,
    "products": Lowering._products,
    "attention": Lowering._attention,
    "combination": Lowering._combination,
    "short_convolution": Lowering._short_convolution,
    "delta_inputs": Lowering._delta_inputs,
    "GatedUnit": Lowering._gated_unit,
    "Split": Lowering._split,
    "Add": Lowering._add,
    "Scale": Lowering._scale,
    "Softcap": Lowering._softcap,
    "Route": Lowering._route,
    "GatedDeltaNet": Lowering._delta,
    "GatedNorm": Lowering._gated_norm,
}


def _logits(graph: Graph) -> set[str]:
    """Return the names of the logits, and of tensors that scales and caps turn into logits."""
    tensors = {t.name: t for op in graph.ops for t in (*op.reads, *op.writes)}
    selects = any(t.shape and t.shape[0] == SELECTED for t in tensors.values())
    found: set[str] = set()
    for op in reversed(graph.ops):
        if op is graph.ops[-1]:
            found = {t.name for t in op.writes if t.kind is Kind.OUTPUT
                     if not selects or t.shape[0] == SELECTED}  # fmt: skip
        if isinstance(op, ops.Scale | ops.Softcap) and op.out.name in found:
            found.add(op.x.name)
    return found


def _before(op: Fused, tensor: Tensor) -> tuple[ops.Rope | None, ops.RMSNorm | None]:
    """Return the rotation and the norm in *op* whose result is *tensor*; None without one.

    *tensor* is the queries or the keys of the attention.
    """
    made = {part.writes[0].name: part for part in op.parts}
    rope = made.get(tensor.name)
    norm = made.get(rope.reads[0].name) if isinstance(rope, ops.Rope) else rope
    return (
        rope if isinstance(rope, ops.Rope) else None,
        norm if isinstance(norm, ops.RMSNorm) else None,
    )


def _rotation(op: Fused) -> ops.Rope | None:
    """Return the rotation of queries and keys, or None if neither is rotated.

    Raises:
        UnsupportedOp: Queries and keys are rotated differently.
    """
    attention = attention_of(op)
    q, k = (_before(op, tensor)[0] for tensor in (attention.q, attention.k))
    alike = (q is None) == (k is None)
    if q and k:
        alike = replace(q, name="", x=k.x, out=k.out, heads=k.heads) == replace(k, name="")
        alike &= (q.heads, k.heads) == (attention.heads, attention.kv_heads)
    if not alike:
        raise unsupported(op, "queries and keys are rotated differently")
    return q


def _head_norms(op: Fused) -> tuple[ops.RMSNorm | None, ops.RMSNorm | None]:
    """Return the norms of queries and keys, or (None, None).

    Raises:
        UnsupportedOp: Only one of them has a norm, the norms differ in eps, or a norm has an offset
            or no weight.
    """
    attention = attention_of(op)
    q, k = (_before(op, tensor)[1] for tensor in (attention.q, attention.k))
    if (q is None) != (k is None) or (q and k and q.eps != k.eps):
        raise unsupported(op, "queries and keys are normalised differently")
    if any(norm and (norm.plus_one or norm.weight is None) for norm in (q, k)):
        raise unsupported(op, "the host's norms need a weight without an offset")
    return q, k


def _unit(op: ops.GatedUnit) -> UnitParameters:
    """Return the host's gated unit that computes *op*."""
    if op == ops.GatedUnit(op.name, op.gate, None, op.out, ops.Activation.GELU_ERF):
        return UnitParameters("GELU_ERF")
    if op.up is None:
        raise unsupported(op, f"the host has no {op.activation.name} unit without up")
    if op == ops.GatedUnit(op.name, op.gate, op.up, op.out):
        return SILU
    if op.activation is ops.Activation.SILU:
        limit = float(np.finfo(np.float32).max) if op.limit is None else op.limit
        return UnitParameters("CLAMPED", limit, op.alpha, op.up_offset)
    if op == ops.GatedUnit(op.name, op.gate, op.up, op.out, ops.Activation.GELU):
        return UnitParameters("GELU")
    raise unsupported(op, f"the host has no {op.activation.name} unit with these parameters")
