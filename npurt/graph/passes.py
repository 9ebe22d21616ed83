"""Rewrite a graph for a device: join ops that it does as one.

A pass finds groups of ops; the first op of a group is its main op.  What they compute
stays the same, which the interpreter can show.  A joined op stands where its last part stood, where
all its inputs are there.  If an op between the parts reads what a part writes, the
group is not joined: its main op, and parts of the same kind, become groups of one op each.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.ops import Fused, Op
from npurt.graph.tensor import Kind, Tensor

Pass = Callable[["Uses"], list[list[Op]]]


class Uses:
    """Who makes and who reads each tensor of a list of ops.

    Args:
        wanted: Names of tensors that are read elsewhere, too.
    """

    def __init__(self, listed: Sequence[Op], wanted: frozenset[str] = frozenset()) -> None:
        self.ops = list(listed)
        self._wanted = wanted
        self.index = {id(op): i for i, op in enumerate(listed)}
        self._maker = {tensor.name: op for op in listed for tensor in op.writes}
        self._readers: dict[str, list[Op]] = {}
        for op in listed:
            for name in dict.fromkeys(tensor.name for tensor in op.reads):
                self._readers.setdefault(name, []).append(op)

    def maker(self, tensor: Tensor) -> Op | None:
        """Return the op that writes *tensor*."""
        return self._maker.get(tensor.name)

    def readers(self, tensor: Tensor) -> list[Op]:
        """Return the ops that read *tensor*."""
        return self._readers.get(tensor.name, [])

    def only_reader(self, tensor: Tensor) -> Op | None:
        """Return the op that reads *tensor* if nobody else needs it."""
        readers = self.readers(tensor)
        return readers[0] if len(readers) == 1 and not self.leaves(tensor) else None

    def leaves(self, tensor: Tensor) -> bool:
        """Say whether *tensor* is an output, or another part wants it."""
        return tensor.kind is Kind.OUTPUT or tensor.name in self._wanted


def apply(graph: Graph, passes: Iterable[tuple[str, Pass]]) -> Graph:
    """Return *graph* with the groups that each pass finds joined, in order."""
    listed: Sequence[Op] = graph.ops
    for pattern, find in passes:
        uses = Uses(listed, graph.wanted)
        joined: dict[int, Fused | None] = {}  # by op: what replaces it, None for nothing
        for group in find(uses):
            whole = _join(pattern, group, uses)
            kind = type(group[0])
            alone = (
                () if whole else (_join(pattern, [op], uses) for op in group if type(op) is kind)
            )
            for fused in filter(None, (whole, *alone)):
                joined |= dict.fromkeys(map(id, fused.parts)) | {id(fused.parts[-1]): fused}
        replaced = [joined.get(id(op), op) for op in listed]
        listed = [op for op in replaced if op is not None]
    return replace(graph, ops=tuple(listed))


def _join(pattern: str, group: list[Op], uses: Uses) -> Fused | None:
    """Return *group* as one op; None when an op in between needs the result of a part."""
    parts = sorted(group, key=lambda op: uses.index[id(op)])
    members = {id(op) for op in parts}
    last = uses.index[id(parts[-1])]
    made = {tensor.name: tensor for op in parts for tensor in op.writes}
    outs = []
    for tensor in made.values():
        outside = [op for op in uses.readers(tensor) if id(op) not in members]
        if any(uses.index[id(op)] < last for op in outside):
            return None
        if outside or uses.leaves(tensor):
            outs.append(tensor)
    return Fused(
        name=parts[-1].name,
        pattern=pattern,
        parts=tuple(parts),
        inputs=tuple({t.name: t for p in parts for t in p.reads if t.name not in made}.values()),
        outs=tuple(outs),
        advances=tuple(tensor for op in parts for tensor in op.states),
    )


# --- What devices join ----------------------------------------------------------------------------


def products(uses: Uses) -> list[list[Op]]:
    """Products of one input and role: q, k and v, or gate and up."""
    groups: dict[tuple[object, ...], list[Op]] = {}
    for op in uses.ops:
        if isinstance(op, ops.MatMul | ops.ExpertMatMul):
            groups.setdefault((type(op), op.x.name, op.role), []).append(op)
    return list(groups.values())


def add_norm(uses: Uses) -> list[list[Op]]:
    """A sum and the norm over whole rows of it; rows may be selected in between."""
    groups = []
    for op in uses.ops:
        if not isinstance(op, ops.RMSNorm | ops.LayerNorm):
            continue
        if isinstance(op, ops.RMSNorm) and op.heads > 1:
            continue
        group: list[Op] = [op]
        maker = uses.maker(op.x)
        if isinstance(maker, ops.SelectRows) and uses.only_reader(op.x):
            group.append(maker)
            maker = uses.maker(maker.x)
        if isinstance(maker, ops.Add):
            group.append(maker)
        groups.append(group)
    return groups


def attention(uses: Uses) -> list[list[Op]]:
    """Attention with the norms and rotations of q and k before it and the gate after it."""
    groups = []
    for op in uses.ops:
        if not isinstance(op, ops.Attention | ops.EncoderAttention):
            continue
        group: list[Op] = [op]
        for tensor in (op.q, op.k):
            group += _before(uses, tensor, (ops.Rope, ops.RMSNorm))
        after = uses.only_reader(op.out)
        if isinstance(after, ops.SigmoidGate) and after.x == op.out:
            group.append(after)
            split = uses.maker(after.gate)
            if isinstance(split, ops.Split) and split.heads == op.heads:
                group.append(split)
        groups.append(group)
    return groups


def _before(uses: Uses, tensor: Tensor, kinds: tuple[type[Op], ...]) -> list[Op]:
    """Return the chain of ops of these kinds that makes *tensor* and that nobody else reads."""
    found: list[Op] = []
    for kind in kinds:
        maker = uses.maker(tensor)
        if isinstance(maker, kind) and uses.only_reader(tensor):
            found.append(maker)
            tensor = maker.reads[0]
    return found


def delta_inputs(uses: Uses) -> list[list[Op]]:
    """The short convolution before a gated delta net, the norms of q and k, and the gates."""
    groups = []
    for op in uses.ops:
        if not isinstance(op, ops.GatedDeltaNet):
            continue
        group = [uses.maker(tensor) for tensor in (op.q, op.k, op.beta)]
        split = uses.maker(op.v)
        if isinstance(split, ops.Split):
            group += [split, uses.maker(split.x)]
        found = [member for member in group if member is not None]
        kinds = [ops.L2Norm, ops.L2Norm, ops.DeltaGates, ops.Split, ops.ShortConv]
        if [type(member) for member in found] == kinds:
            groups.append(found)
    return groups


def short_convolution(uses: Uses) -> list[list[Op]]:
    """A short convolution, the products before and after it, and the split of their operands."""
    groups = []
    for op in uses.ops:
        if not isinstance(op, ops.ShortConv):
            continue
        before, after = uses.maker(op.x), uses.only_reader(op.out)
        if not (isinstance(before, ops.Multiply) and isinstance(after, ops.Multiply)):
            continue
        split = uses.maker(before.a)
        if isinstance(split, ops.Split) and split.outs == (before.a, after.a, before.b):
            groups.append([op, split, before, after])
    return groups


def combination(uses: Uses) -> list[list[Op]]:
    """The weighted sum of experts, and the gated result of a shared expert that is added to it."""
    groups = []
    for op in uses.ops:
        if not isinstance(op, ops.WeightedSum):
            continue
        group: list[Op] = [op]
        add = uses.only_reader(op.out)
        if isinstance(add, ops.Add) and add.scale == 1 and add.a == op.out:
            gate = uses.maker(add.b)
            if isinstance(gate, ops.SigmoidGate) and uses.only_reader(add.b):
                group += [gate, add]
        groups.append(group)
    return groups


HOST: tuple[tuple[str, Pass], ...] = (
    ("products", products),
    ("attention", attention),
    ("delta_inputs", delta_inputs),
    ("short_convolution", short_convolution),
    ("combination", combination),
    ("add_norm", add_norm),
)
