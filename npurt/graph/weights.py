"""The weights that the products of a graph multiply by."""

from npurt.errors import UnsupportedOp
from npurt.graph import ops
from npurt.graph.graph import Graph


def products(graph: Graph) -> dict[str, ops.MatMul | ops.ExpertMatMul]:
    """Return, by name of each matrix, the first op that multiplies by it.

    Raises:
        UnsupportedOp: Two products with the same matrix have different biases.
    """
    found: dict[str, ops.MatMul | ops.ExpertMatMul] = {}
    for op in graph.ops:
        if not isinstance(op, ops.MatMul | ops.ExpertMatMul):
            continue
        if found.setdefault(op.weight.name, op).bias != op.bias:
            raise UnsupportedOp(
                f"{type(op).__name__} {op.name} cannot run on the host: another product with "
                f"{op.weight.name} has another bias",
                remedy="run it on the device numpy, which runs every op",
            )
    return found
