"""From a graph to programs: buffers for its tensors, and the CPU's ops for each of the graph's.

Layers have the same ops, so a buffer belongs to a tensor's name without its block and serves every
layer.  Products of one input write side by side to one buffer; the results are views of it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from npurt.cpu.bound import Bound, Columns
from npurt.cpu.checked import Weight
from npurt.cpu.engine import Input, empty
from npurt.cpu.program import GROUP, SILU, Convolution, Heads, Program, Routing, Unit
from npurt.cpu.steps import Steps
from npurt.device import F32, DeltaNet
from npurt.errors import UnsupportedOp
from npurt.graph import ops, passes
from npurt.graph.graph import Graph
from npurt.graph.ops import Fused, Op, Pairing, Precision
from npurt.graph.tensor import Kind, Tensor


class Lowering:
    """Adds a graph to steps.

    Args:
        steps: Where to.
        graph: As an architecture built it.
        bound: Its weights and states.
        inputs: Buffers ``[rows, columns]`` of the graph's inputs and of the embedding, by name.
        captures: What to call with the first rows of each output that is copied inside the graph.
    """

    def __init__(
        self,
        steps: Steps,
        graph: Graph,
        bound: Bound,
        inputs: Mapping[str, F32],
        captures: Mapping[str, Callable[[F32, int], None]] | None = None,
    ) -> None:
        self._steps = steps
        self._bound = bound
        self._captures = captures or {}
        self._graph = passes.apply(graph, passes.HOST)
        self._last_use = self._graph.last_use()
        self._values: dict[str, Columns | Input] = {
            name: Columns(buffer, 0, buffer.shape[1]) for name, buffer in inputs.items()
        }
        self._buffers: dict[tuple[str, int], Any] = {}
        self._precisions = _precisions(self._graph, bound.weights)
        self._convolutions: dict[str, Convolution] = {}
        self._routings: dict[str, tuple[Routing, Input]] = {}
        self._logits = _logits(self._graph)
        self.last_sum: tuple[F32, F32, float] | None = None  # (x, y, scale): before the last norm

    def add(self) -> None:
        """Add all ops.

        Raises:
            UnsupportedOp: The host has no kernel for an op, or for its conventions.
        """
        for index, op in enumerate(self._graph.ops):
            if any(tensor.name in self._values for tensor in op.writes):
                continue  # the embedding: its rows are given
            lower = _LOWER.get(op.pattern if isinstance(op, Fused) else type(op).__name__)
            if lower is None:
                raise _unsupported(op, "the host has no kernel for it")
            lower(self, op, index)

    # --- Values ---------------------------------------------------------------------------------

    def columns(self, tensor: Tensor) -> Columns:
        """Return where *tensor* is, which no product needs codes of."""
        value = self._values[tensor.name]
        return Columns(value.values, 0, value.k) if isinstance(value, Input) else value

    def vector(self, tensor: Tensor) -> F32:
        """Return a weight that is not multiplied by."""
        return self._bound.vectors[tensor.name]

    def input(self, tensor: Tensor) -> Input:
        """Return the input of products that *tensor* is; quantise it where nobody has."""
        value = self._values[tensor.name]
        if isinstance(value, Columns):
            assert value.count == value.buffer.shape[1], f"{tensor.name} lies beside others"
            value = self._values[tensor.name] = self.shared_input(tensor, value.buffer)
            if value.quantised:
                self._quantise(value)
        return value

    def _quantise(self, value: Input) -> None:
        self._steps.host().add("quantise", Program.quant, value)

    def shared_input(self, tensor: Tensor, buffer: F32) -> Input:
        """Return an input whose values are *buffer*, with codes as products of *tensor* need."""
        quantised, fine = self._precisions.get(_local(tensor.name), (False, False))
        key = (f"input of {buffer.ctypes.data}, {quantised}, {fine}", tensor.columns)
        if key not in self._buffers:
            self._buffers[key] = Input(*buffer.shape, quantised=quantised, fine=fine, values=buffer)
        made: Input = self._buffers[key]
        return made

    def buffer(self, name: str, columns: int, fan: int = 1) -> F32:
        """Return the buffer ``[rows * fan, columns]`` that *name* has in every layer."""
        key = (_local(name), columns)
        if key not in self._buffers:
            self._buffers[key] = empty(self._bound.rows * fan, columns)
        made: F32 = self._buffers[key]
        return made

    def make_input(self, tensor: Tensor, fan: int = 1) -> Input:
        """Return a new value of *tensor*, with codes when a product of integers reads it."""
        local = _local(tensor.name)
        key = (local, tensor.columns)
        if key not in self._buffers:
            quantised, fine = self._precisions.get(local, (False, False))
            rows = self._bound.rows * fan
            self._buffers[key] = Input(rows, tensor.columns, quantised=quantised, fine=fine)
        made = self._buffers[key]
        assert isinstance(made, Input), f"{tensor.name} is an input in some layers only"
        self._values[tensor.name] = made
        return made

    def make(self, tensors: Sequence[Tensor], fan: int = 1) -> F32:
        """Return a buffer that has new values of *tensors* side by side."""
        whole = self.buffer(tensors[0].name, sum(tensor.columns for tensor in tensors), fan)
        start = 0
        for tensor in tensors:
            self._values[tensor.name] = Columns(whole, start, tensor.columns)
            start += tensor.columns
        return whole

    def beside(self, op: Op, tensors: Sequence[Tensor]) -> F32:
        """Return the buffer that *tensors* fill side by side."""
        found = [self.columns(tensor) for tensor in tensors]
        buffer, end = found[0].buffer, 0
        for each in found:
            if each.buffer is not buffer or each.start != end:
                raise _unsupported(op, "its inputs do not lie side by side")
            end += each.count
        if end != buffer.shape[1]:
            raise _unsupported(op, "its inputs lie beside others")
        return buffer

    # --- Ops ------------------------------------------------------------------------------------

    def _add_norm(self, op: Fused, index: int) -> None:
        *before, norm = op.parts
        assert isinstance(norm, ops.RMSNorm)
        if norm.plus_one or norm.weight is None:
            raise _unsupported(op, "the host norms by a weight as it is")
        add = next((part for part in before if isinstance(part, ops.Add)), None)
        selects = any(isinstance(part, ops.SelectRows) for part in before)
        source = add.a if add else before[0].reads[0] if before else norm.x
        x = self.beside(op, [source])
        added, scale = None, 1.0
        if add is not None:
            self._require_last(op, add, index)
            added, scale = self.beside(op, [add.b]), add.scale
            self._values[add.out.name] = self.columns(source)
            self.last_sum = x, added, scale
        self._steps.host().add(
            "norm", Program.norm, x, self.vector(norm.weight), norm.eps, self.make_input(norm.out),
            add=added, scale=scale, from_head=selects,
        )  # fmt: skip

    def _require_last(self, op: Op, add: ops.Add, index: int) -> None:
        """Refuse a sum in place of what is read again."""
        if self._last_use.get(add.a.name, index) > index:
            raise _unsupported(op, f"{add.a.name} is read again after the sum")

    def _add(self, op: ops.Add, index: int) -> None:
        self._require_last(op, op, index)
        out = self.shared_input(op.out, self.beside(op, [op.a]))
        self._steps.host().add("sum", Program.sum, self.beside(op, [op.b]), out, scale=op.scale)
        self._values[op.out.name] = out

    def _scale(self, op: ops.Scale, index: int) -> None:
        del index
        self._cap_logits(op, factor=op.factor)

    def _softcap(self, op: ops.Softcap, index: int) -> None:
        del index
        self._cap_logits(op, cap=op.cap)

    def _cap_logits(self, op: ops.Scale | ops.Softcap, factor: float = 1.0, cap: float = 0) -> None:
        if op.x.name not in self._logits:
            raise _unsupported(op, "the host scales and caps logits only")
        self._steps.cap_logits(self.beside(op, [op.x]), factor=factor, cap=cap)
        self._values[op.out.name] = self._values[op.x.name]

    def _products(self, op: Fused, index: int) -> None:
        del index
        first = op.parts[0]
        outs = [part.writes[0] for part in op.parts]
        if isinstance(first, ops.ExpertMatMul):
            routing, copies = self._routings[first.experts.name]
            x = copies if len(first.x.shape) == 2 else self.input(first.x)
            stacks = [self._bound.weights[part.reads[1].name] for part in op.parts]
            self._steps.experts(first.role, x, stacks, self.make(outs, routing.used), routing)
            return
        assert isinstance(first, ops.MatMul)
        weights = [self._bound.weights[part.reads[1].name] for part in op.parts]
        last = outs[-1].name in self._logits
        y = empty(1, outs[0].columns) if last else self.make(outs)
        if last:
            self._values[outs[-1].name] = Columns(y, 0, outs[-1].columns)
        self._steps.matmul(first.role, self.input(first.x), weights, y, head=last)

    def _attention(self, op: Fused, index: int) -> None:
        del index
        named = {type(part): part for part in op.parts}
        attention, rope = named[ops.Attention], named.get(ops.Rope)
        assert isinstance(attention, ops.Attention)
        assert rope is None or isinstance(rope, ops.Rope)
        norms = [part for part in op.parts if isinstance(part, ops.RMSNorm)]
        if any(norm.plus_one for norm in norms):
            raise _unsupported(op, "the host norms by a weight as it is")
        split = named.get(ops.Split)
        q = split.reads[0] if split else _source(op, attention.q)
        qkv = self.beside(op, (q, _source(op, attention.k), attention.v))
        kv = self._bound.kv[attention.name]
        q_norm, k_norm = [self.vector(n.weight) for n in norms if n.weight] or (None, None)
        heads = Heads(
            qkv=qkv,
            cos=kv.cos,
            sin=kv.sin,
            k_cache=kv.keys,
            v_cache=kv.values,
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            width=attention.q.columns // attention.heads,
            halves=rope is not None and rope.pairing is Pairing.HALVES,
            scale=attention.scale,
            gated=ops.SigmoidGate in named,
            q_norm=q_norm,
            k_norm=k_norm,
            eps=norms[0].eps if norms else 0.0,
            window=attention.window,
            softcap=attention.softcap,
            sinks=self.vector(attention.sinks) if attention.sinks else None,
            temperature=kv.temperature,
        )
        host, out = self._steps.host(), self.make_input(op.outs[0])
        host.add("rope", Program.rope, heads)
        host.add("attention", Program.attend, heads, out.values)
        if out.quantised:
            self._quantise(out)

    def _gated_unit(self, op: ops.GatedUnit, index: int) -> None:
        del index
        if op.up is None:
            raise _unsupported(op, "the host has activations of gates only")
        fan = op.out.shape[1].size or 1 if len(op.out.shape) == 3 else 1
        both = self.beside(op, (op.gate, op.up))
        out = self.make_input(op.out, fan)
        self._steps.host().add("activation", Program.unit, both, out, unit=_unit(op), fan=fan)

    def _split(self, op: ops.Split, index: int) -> None:
        del index
        if op.heads > 1:
            raise _unsupported(op, "the host splits heads for gated attention only")
        whole = self.columns(op.x)
        start = whole.start
        for out in op.outs:
            self._values[out.name] = Columns(whole.buffer, start, out.columns)
            start += out.columns

    def _copy(self, op: ops.Copy, index: int) -> None:
        del index
        x, capture = self.columns(op.x).view, self._captures[op.out.name]
        self._steps.call(lambda rows, position, head: capture(x, rows))

    # --- Experts --------------------------------------------------------------------------------

    def _route(self, op: ops.Route, index: int) -> None:
        del index
        if op.gating is ops.Gating.SIGMOID or op.bias is not None:
            raise _unsupported(op, "the host routes by a softmax of scores only")
        rows, used, experts = self._bound.rows, op.experts.columns, op.scores.columns
        x = next(
            part.x
            for fused in self._graph.ops
            if isinstance(fused, Fused)
            for part in fused.parts
            if isinstance(part, ops.ExpertMatMul)
            if part.experts == op.experts and len(part.x.shape) == 2
        )
        key = (_local(op.name), experts)
        if key not in self._buffers:
            copied = self._precisions[_local(x.name)]
            self._buffers[key] = (
                Routing(
                    shares=empty(rows, used),
                    places=empty(rows, used, np.int64),
                    sources=empty(rows, used, np.int64).reshape(-1),
                    groups=empty(1, min(experts, rows * used), GROUP).reshape(-1),
                    experts=experts,
                ),
                Input(rows * used, x.columns, quantised=copied[0], fine=copied[1]),
            )
        routing, copies = self._routings[op.experts.name] = self._buffers[key]
        scores = self.columns(op.scores).buffer
        host, source = self._steps.host(), self.input(x)
        host.add(
            "route", Program.route, scores, routing, normed=op.normalise, scale=op.scale,
            over_chosen=op.gating is ops.Gating.SOFTMAX_CHOSEN,
        )  # fmt: skip
        host.add("route", Program.gather, source, routing, copies)

    def _combination(self, op: Fused, index: int) -> None:
        del index
        total, *rest = op.parts
        assert isinstance(total, ops.WeightedSum)
        gate = next((part for part in op.parts if isinstance(part, ops.SigmoidGate)), None)
        del rest
        routing = next(r for name, (r, _) in self._routings.items()
                       if total.weights.name == name.replace(".experts", ".weights"))  # fmt: skip
        self._steps.host().add(
            "combine",
            Program.combine,
            self.columns(total.x).buffer,
            routing,
            self.make(op.outs),
            shared=self.columns(gate.x).buffer if gate else None,
            gate=self.columns(gate.gate).view if gate else None,
        )

    # --- Recurrence -----------------------------------------------------------------------------

    def _short_convolution(self, op: Fused, index: int) -> None:
        del index
        split, _, conv, _ = op.parts
        assert isinstance(conv, ops.ShortConv)
        if conv.bias or conv.activation is not ops.Activation.NONE:
            raise _unsupported(op, "the host convolves without a bias or an activation")
        self._steps.host().add(
            "convolution",
            Program.shortconv,
            self.beside(op, split.reads),
            np.ascontiguousarray(self.vector(conv.weight).T),
            self._bound.convolved[conv.name],
            self.make_input(op.outs[0]),
        )

    def _delta_inputs(self, op: Fused, index: int) -> None:
        del index
        named = {type(part): part for part in op.parts}
        conv, gates, norm = (named[k] for k in (ops.ShortConv, ops.DeltaGates, ops.L2Norm))
        net = self._reader(op.outs, ops.GatedDeltaNet)
        assert isinstance(conv, ops.ShortConv)
        assert isinstance(gates, ops.DeltaGates)
        assert isinstance(norm, ops.L2Norm)
        assert isinstance(net, ops.GatedDeltaNet)
        mixed = self.columns(conv.x)
        if mixed.start or conv.bias or conv.activation is not ops.Activation.SILU:
            raise _unsupported(op, "the host convolves first columns without a bias, then SiLU")
        width = net.v.columns // net.heads
        out = self.make([net.q, net.k, net.v])
        out_gates = self.make([gates.out_beta, gates.out_decay])
        self._convolutions[net.name] = Convolution(
            x=mixed.buffer,
            gates=self.beside(op, (gates.beta, gates.alpha)),
            weight=np.ascontiguousarray(self.vector(conv.weight).T),
            rate=self.vector(gates.rate),
            bias=self.vector(gates.bias),
            kept=self._bound.recurrent[net.name].inputs,
            out=out,
            out_gates=out_gates,
            heads=net.heads,
            k_heads=net.k_heads,
            width=width,
            eps=norm.eps,
        )

    def _delta(self, op: ops.GatedDeltaNet, index: int) -> None:
        del index
        conv, held = self._convolutions[op.name], self._bound.recurrent[op.name]
        rows = len(conv.out)
        heads = conv.out.reshape(1, rows, -1, conv.width)
        q, k, v = np.split(heads, [conv.k_heads, 2 * conv.k_heads], axis=2)
        beta, decay = np.split(conv.out_gates[None], 2, axis=2)
        net = DeltaNet(
            q=q, k=k, v=v, decay=decay[..., None], beta=beta,
            out=self.make([op.out]).reshape(v.shape), state=held.slots.array[0],
            scale=op.scale, grouped=op.grouped,
        )  # fmt: skip
        self._steps.delta(conv, net, held)

    def _gated_norm(self, op: ops.GatedNorm, index: int) -> None:
        del index
        self._steps.host().add(
            "norm",
            Program.gate,
            self.columns(op.x).buffer,
            self.columns(op.gate).view,
            self.vector(op.weight),
            op.eps,
            self.make_input(op.out),
        )

    def _reader(self, made: Sequence[Tensor], kind: type[Op]) -> Op:
        names = {tensor.name for tensor in made}
        return next(
            op for op in self._graph.ops
            if isinstance(op, kind) and any(t.name in names for t in op.reads)
        )  # fmt: skip


_LOWER: dict[str, Callable[[Lowering, Any, int], None]] = {
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
    "Copy": Lowering._copy,
    "Route": Lowering._route,
    "GatedDeltaNet": Lowering._delta,
    "GatedNorm": Lowering._gated_norm,
}


def _local(name: str) -> str:
    """Return *name* without its block: what is alike in all layers."""
    return name.rpartition(".")[2]


def _source(op: Fused, tensor: Tensor) -> Tensor:
    """Return what *tensor* is made of by the parts of *op*: their norms and rotations."""
    made = {part.writes[0].name: part for part in op.parts if not isinstance(part, ops.Split)}
    while tensor.name in made:
        tensor = made[tensor.name].reads[0]
    return tensor


def _logits(graph: Graph) -> set[str]:
    """Return the names of the output and of what only becomes it by scales and caps."""
    found: set[str] = set()
    for op in reversed(graph.ops):
        found |= {tensor.name for tensor in op.writes if tensor.kind is Kind.OUTPUT}
        if isinstance(op, ops.Scale | ops.Softcap) and op.out.name in found:
            found.add(op.x.name)
    return found


def _unit(op: ops.GatedUnit) -> Unit:
    """Return what the host's gated unit does for *op*."""
    if op == ops.GatedUnit(op.name, op.gate, op.up, op.out):
        return SILU
    if op.activation is ops.Activation.SILU:
        limit = float(np.finfo(np.float32).max) if op.limit is None else op.limit
        return Unit("CLAMPED", limit, op.alpha, op.up_offset)
    if op == ops.GatedUnit(op.name, op.gate, op.up, op.out, ops.Activation.GELU):
        return Unit("GELU")
    raise _unsupported(op, f"the host has no such unit of {op.activation.name}")


def _precisions(graph: Graph, weights: Mapping[str, Weight]) -> dict[str, tuple[bool, bool]]:
    """Return for each input of products whether it needs codes, and whether fine ones.

    Keys are names without blocks: an input is the same in all layers.
    """
    found: dict[str, tuple[bool, bool]] = {}
    for op in graph.ops:
        for part in op.parts if isinstance(op, Fused) else ():
            if isinstance(part, ops.MatMul | ops.ExpertMatMul):
                local = _local(part.x.name)
                quantised, fine = found.get(local, (False, False))
                form = weights[part.weight.name].packed.tensor.format
                found[local] = (
                    quantised or form.block > 1,
                    fine or part.precision is Precision.INT16,
                )
    return found


def _unsupported(op: Op, why: str) -> UnsupportedOp:
    return UnsupportedOp(
        f"{type(op).__name__} {op.name} cannot run on the host: {why}",
        remedy="use a model whose architecture `npurt models` lists",
    )
