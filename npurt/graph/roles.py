"""The labels of ops in reports."""

from npurt.graph import ops
from npurt.graph.ops import Op

ROLES = {
    ops.Embedding: "embedding",
    ops.RMSNorm: "norm",
    ops.LayerNorm: "norm",
    ops.L2Norm: "norm",
    ops.GatedNorm: "norm",
    ops.Rope: "rope",
    ops.Attention: "attention",
    ops.EncoderAttention: "attention",
    ops.GatedUnit: "activation",
    ops.Route: "route",
    ops.WeightedSum: "weighted_sum",
    ops.ShortConv: "convolution",
    ops.DeltaGates: "delta net",
    ops.GatedDeltaNet: "delta net",
}


def role(op: Op) -> str:
    """Return the label of *op* in reports."""
    if isinstance(op, ops.MatMul | ops.ExpertMatMul):
        return op.role
    return ROLES.get(type(op), "element-wise")
