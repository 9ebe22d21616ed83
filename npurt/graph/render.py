"""Print a graph as text, as a dict for JSON, or in Graphviz' language."""

from dataclasses import fields
from enum import Enum
from typing import Any

from npurt.graph.cost import cost
from npurt.graph.graph import Graph
from npurt.graph.ops import Op
from npurt.graph.tensor import Kind, Tensor, sizes


def conventions(op: Op) -> dict[str, Any]:
    """Return the fields of *op*, except tensors and defaults, as plain values by name."""
    found = {}
    for field in fields(op):
        value = getattr(op, field.name)
        tensors = field.name in (*op.READS, *op.WRITES, *op.STATES) or not field.init
        if tensors or field.name == "name":
            continue
        if value != field.default:
            found[field.name] = value.value if isinstance(value, Enum) else value
    return found


def lines(graph: Graph) -> list[str]:
    """Return one line per op with its results, operands and `conventions`."""
    out = []
    for op in graph.ops:
        made = "; ".join(map(str, op.writes))
        read = ", ".join(tensor.name for tensor in (*op.reads, *op.states))
        how = "".join(f", {name}={value}" for name, value in conventions(op).items())
        out.append(f"{made} = {type(op).__name__}({read}{how})")
    return out


def as_dict(graph: Graph, rows: int = 1) -> dict[str, Any]:
    """Return the graph as plain values: tensors by kind, and the ops with their cost.

    Args:
        rows: The number of rows for which costs are computed, at the start of a sequence.
    """
    return {
        "name": graph.name,
        "tensors": {
            tensor.name: {
                "kind": kind.value,
                "dtype": tensor.dtype,
                "shape": list(sizes(tensor)),
                "letters": [dim.letter for dim in tensor.shape],
            }
            for kind in Kind
            for tensor in graph.tensors(kind)
        },
        "ops": [_op(op, rows) for op in graph.ops],
    }


def _op(op: Op, rows: int) -> dict[str, Any]:
    work = cost(op, rows)
    return {
        "op": type(op).__name__,
        "name": op.name,
        "reads": [tensor.name for tensor in op.reads],
        "writes": [tensor.name for tensor in op.writes],
        "states": [tensor.name for tensor in op.states],
        **conventions(op),
        "macs": work.macs,
        "weight_bytes": work.weight_bytes,
    }


def dot(graph: Graph) -> str:
    """Return the graph in Graphviz' language, with a box per op and an arrow per activation."""
    maker = {tensor.name: op.name for op in graph.ops for tensor in op.writes}
    out = [f'digraph "{graph.name}" {{', "  node [shape=box, fontname=sans, fontsize=10];"]
    for op in graph.ops:
        weights = [t for t in op.reads if t.kind is Kind.WEIGHT]
        label = "\\n".join([f"{type(op).__name__}", op.name, *map(_short, weights)])
        out.append(f'  "{op.name}" [label="{label}"];')
        for tensor in dict.fromkeys(op.reads):
            if tensor.name in maker:
                shape = " x ".join(map(str, sizes(tensor)))
                out.append(f'  "{maker[tensor.name]}" -> "{op.name}" [label="{shape}"];')
    return "\n".join([*out, "}"]) + "\n"


def _short(tensor: Tensor) -> str:
    return f"{tensor.dtype} {' x '.join(map(str, sizes(tensor)))}"
