"""Compute the cost of an op from its shapes: multiply-adds and bytes of weights."""

import math
from dataclasses import dataclass

from npurt.graph import ops
from npurt.graph.tensor import Kind, Tensor
from npurt.quant.types import BY_NAME


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an op in one run.

    Attributes:
        macs: The number of multiply-adds.
        weight_bytes: The bytes of weights that the op reads.
    """

    macs: int
    weight_bytes: int


def weight_bytes(tensor: Tensor) -> int:
    """Return the bytes of a weight in its GGUF type; 4 per element of other types."""
    elements = math.prod(dim.size or 0 for dim in tensor.shape)
    if tensor.dtype not in BY_NAME:
        return 4 * elements
    form = BY_NAME[tensor.dtype]
    return elements // form.block * form.block_bytes


def cost(op: ops.Op, rows: int, positions: int = 0) -> Cost:
    """Return the cost of *op* on *rows* rows of a sequence, with *positions* tokens before them."""
    weights = sum(weight_bytes(t) for t in op.reads if t.kind is Kind.WEIGHT)
    macs = 0
    if isinstance(op, ops.MatMul):
        macs = rows * op.x.columns * op.out.columns
    elif isinstance(op, ops.ExpertMatMul):
        chosen = op.experts.columns
        macs = rows * chosen * op.x.columns * op.out.columns
        experts = op.weight.shape[0].size or 1
        weights = weights // experts * min(experts, rows * chosen)
    elif isinstance(op, ops.Attention):
        seen = rows * positions + rows * (rows + 1) // 2
        macs = 2 * (min(seen, rows * op.window) if op.window else seen) * op.q.columns
    elif isinstance(op, ops.EncoderAttention):
        macs = 2 * rows * rows * op.q.columns
    elif isinstance(op, ops.GatedDeltaNet):
        macs = 3 * rows * op.v.columns * (op.v.columns // op.heads)
    elif isinstance(op, ops.ShortConv):
        macs = rows * op.x.columns * op.weight.columns
    elif isinstance(op, ops.Embedding):
        weights = weights * rows // max(op.weight.shape[0].size or 1, 1)
    return Cost(macs, weights)
