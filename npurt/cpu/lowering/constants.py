"""The weights of a part of a graph: packed for products, as floats, and as tables of rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from npurt.cpu.lowering.buffers import unsupported
from npurt.cpu.pool.checked import Weight
from npurt.cpu.pool.packed import CpuPacked
from npurt.device import F32
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.tensor import SELECTED, Kind
from npurt.quant.tensor import QTensor
from npurt.segment import Array, Weights

Place = Callable[[Graph, Weights, Mapping[str, F32]], Mapping[str, Weight]]


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight of products: see `npurt.cpu.pool.checked.Weight`."""

    name: str
    packed: CpuPacked
    bias: F32 | None


def pack_each(
    pack: Callable[[Sequence[QTensor]], list[CpuPacked]],
    part: Graph,
    weights: Weights,
    vectors: Mapping[str, F32],
) -> dict[str, Weight]:
    """Lay all matrices of *part* out with *pack*; return them by name of the tensor."""
    found = products(part)
    packed = pack([weights.quantised(name) for name in found])
    return {
        name: PackedWeight(
            name.removesuffix(".weight"), image, vectors[op.bias.name] if op.bias else None
        )
        for (name, op), image in zip(found.items(), packed, strict=True)
    }


def products(part: Graph) -> dict[str, ops.MatMul | ops.ExpertMatMul]:
    """Return the first product with each matrix, by name of the matrix.

    Raises:
        UnsupportedOp: Two products with one matrix have different biases.
    """
    found: dict[str, ops.MatMul | ops.ExpertMatMul] = {}
    for op in part.ops:
        if not isinstance(op, ops.MatMul | ops.ExpertMatMul):
            continue
        if found.setdefault(op.weight.name, op).bias != op.bias:
            raise unsupported(op, f"{op.weight.name} has another bias in another product")
    return found


class Constants:
    """What the ops of a part read besides the values of a run.

    Attributes:
        tensors: What ops read and make, by name.
        selected: Names of those with a row for each row that a run selects.
        given: Names of those that a run is given.
        weights: Matrices of products by name of the tensor.
        vectors: Other weights by name.
        tables: Weights that rows are taken from, by name.
    """

    def __init__(self, place: Place, part: Graph, weights: Weights) -> None:
        given = part.given | {tensor.name for tensor in part.tensors(Kind.INPUT)}
        wanted = part.wanted | {tensor.name for tensor in part.tensors(Kind.OUTPUT)}
        self.part = part = replace(part, given=given, wanted=wanted)
        self.given = given
        self.tensors = tensors = {t.name: t for op in part.ops for t in (*op.reads, *op.writes)}
        self.selected = {t.name for t in tensors.values() if t.shape and t.shape[0] == SELECTED}
        self.source = weights
        matrices = products(part)
        self.tables: dict[str, QTensor] = {
            op.weight.name: weights.quantised(op.weight.name)
            for op in part.ops
            if isinstance(op, ops.Embedding)
        }
        self.vectors: dict[str, F32] = {
            tensor.name: np.ascontiguousarray(weights.values(tensor.name), np.float32)
            for tensor in part.tensors(Kind.WEIGHT)
            if tensor.name not in matrices and tensor.name not in self.tables
        }
        self.weights = dict(place(part, weights, self.vectors))

    def load(self, name: str) -> Array:
        """Return a weight or table as floats, for ops without a kernel."""
        return self.vectors[name] if name in self.vectors else self.source.values(name)

    def close(self) -> None:
        """Let go of the weights."""
        self.weights.clear()
        self.vectors.clear()
        self.tables.clear()
