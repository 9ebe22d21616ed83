"""The weights of a part of a graph: packed matrices, float vectors, and embedding tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from npurt.cpu.pool.checked import NamedWeight
from npurt.cpu.pool.packed import CpuPacked
from npurt.device.device import F32
from npurt.device.segment import Array, Weights
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.tensor import SELECTED, Kind
from npurt.graph.weights import products
from npurt.quant.tensor import QTensor

Place = Callable[[Graph, Weights, Mapping[str, F32]], Mapping[str, NamedWeight]]


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A packed weight with its name and bias: a `npurt.cpu.pool.checked.NamedWeight`."""

    name: str
    packed: CpuPacked
    bias: F32 | None


def pack_each(
    pack: Callable[[Sequence[QTensor]], list[CpuPacked]],
    part: Graph,
    weights: Weights,
    vectors: Mapping[str, F32],
) -> dict[str, NamedWeight]:
    """Pack all matrices of *part* with *pack*; return the packed weights by tensor name."""
    found = products(part)
    packed = pack([weights.quantised(name) for name in found])
    return {
        name: PackedWeight(
            name.removesuffix(".weight"), image, vectors[op.bias.name] if op.bias else None
        )
        for (name, op), image in zip(found.items(), packed, strict=True)
    }


class Constants:
    """The weights that the ops of a part read, which are the same in all runs.

    Attributes:
        part: The part of the graph; its inputs are in `given`, its outputs in `wanted`.
        tensors: All tensors that the ops read or write, by name.
        selected: Names of the tensors that have one row for each row that a run selects.
        given: Names of the tensors that the caller of a run passes.
        weights: Packed matrices of products by tensor name.
        vectors: Other weights, as floats, by name.
        tables: Embedding matrices by name.
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
        """Return a weight as floats, for ops without a kernel."""
        return self.vectors[name] if name in self.vectors else self.source.values(name)

    def close(self) -> None:
        """Drop the references to the weights."""
        self.weights.clear()
        self.vectors.clear()
        self.tables.clear()
