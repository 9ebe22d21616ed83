"""Rewrite a graph for a device: join groups of ops that the device runs as one op.

A pass finds groups of ops; the first op of a group is its main op.  Joining does not change the
results of the graph.  A joined op takes the place of its last part in the order, where all its
inputs exist.  If an op between the parts reads the result of a part, the group is not joined.
Instead, its main op and the parts of the same type are wrapped as groups of one op each.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.ops import Fused, Op
from npurt.graph.tensor import Kind, Tensor

Pass = Callable[["Uses"], list[list[Op]]]


class Uses:
    """The writer and the readers of each tensor in a list of ops.

    Args:
        listed: The ops, in order.
        wanted: Names of tensors that other parts of the graph read.
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
        """Return the op that reads *tensor* if it is the only one, else None."""
        readers = self.readers(tensor)
        return readers[0] if len(readers) == 1 and not self.leaves(tensor) else None

    def leaves(self, tensor: Tensor) -> bool:
        """Return whether *tensor* is an output, or another part of the graph reads it."""
        return tensor.kind is Kind.OUTPUT or tensor.name in self._wanted


def apply(graph: Graph, passes: Iterable[tuple[str, Pass]]) -> Graph:
    """Return *graph* after all *passes*, each of which joins the groups it finds."""
    listed: Sequence[Op] = graph.ops
    for pattern, find in passes:
        uses = Uses(listed, graph.wanted)
        joined: dict[int, Fused | None] = {}  # id of an op -> its replacement; None removes it
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
    """Return *group* joined to one op, or None if an op between its parts reads a part's result."""
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


# --- Passes ---------------------------------------------------------------------------------------


def products(uses: Uses) -> list[list[Op]]:
    """Find products with the same input and role, such as q, k and v, or gate and up."""
    groups: dict[tuple[object, ...], list[Op]] = {}
    for op in uses.ops:
        if isinstance(op, ops.MatMul | ops.ExpertMatMul):
            groups.setdefault((type(op), op.x.name, op.role), []).append(op)
    return list(groups.values())


def add_norm(uses: Uses) -> list[list[Op]]:
    """Find norms over whole rows, with the selection of rows and the sum directly before them."""
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
    """Find attentions, with the norms and rotations of q and k and with the gate of the result."""
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
    """Return the chain of ops of *kinds* that computes *tensor*, if no other op reads its results.

    The last op of the chain is first.
    """
    found: list[Op] = []
    for kind in kinds:
        maker = uses.maker(tensor)
        if isinstance(maker, kind) and uses.only_reader(tensor):
            found.append(maker)
            tensor = maker.reads[0]
    return found


def delta_inputs(uses: Uses) -> list[list[Op]]:
    """Find the short convolutions before gated delta nets, with norms of q and k, and gates."""
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
    """Find short convolutions between two products, with the split that makes their operands."""
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
    """Find weighted sums of experts, with the addition of a gated shared expert."""
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
