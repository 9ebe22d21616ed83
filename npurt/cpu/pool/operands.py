"""What ops of a program take besides plain arrays: weights, heads, convolutions, experts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.quant.types import Format

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Image:
    """A weight as the kernels read it (layout.h)."""

    data: npt.NDArray[np.uint8]
    n: int
    k: int
    format: Format

    @property
    def integer(self) -> bool:
        """True when its kernels multiply int8 codes of the input, not its float values."""
        return self.format.block > 1


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention of one layer: its buffers and how its heads are cut.

    A row of *qkv* is the query heads, the key heads and the value heads; in a *gated* one a gate of
    the same width follows each query head.
    """

    qkv: F32  # [rows, (heads + 2 * kv_heads) * width], or heads twice
    cos: F32  # [positions, rotated / 2]
    sin: F32
    k_cache: npt.NDArray[Any]  # as in `npurt.cpu.state.kv`, float16 or float32
    v_cache: npt.NDArray[Any]
    heads: int
    kv_heads: int
    width: int
    halves: bool  # rotate (i, i + rotated / 2), not (2i, 2i + 1)
    scale: float
    gated: bool = False
    q_norm: F32 | None = None  # [width]: heads are normed before they rotate
    k_norm: F32 | None = None
    eps: float = 0.0
    window: int = 0  # positions that a row sees, its own included; 0: all
    softcap: float = 0.0  # scores become softcap * tanh(score / softcap); 0: they stay
    sinks: F32 | None = None  # [heads]: one more logit of a head, whose value is nothing
    temperature: F32 | None = None  # [positions]: queries are multiplied by it

    @property
    def whole(self) -> bool:
        """True when q and k are normed over all heads together."""
        return self.q_norm is not None and len(self.q_norm) != self.width


@dataclass(frozen=True, slots=True)
class Unit:
    """What a gated unit does: ``activation(gate) * up``.

    A *clamped* one has SiLU: ``gate * sigmoid(alpha * gate) * (up + offset)``, the gate clamped
    from above and up from both sides at *limit*.
    """

    activation: str = "SILU"  # NPURT_* in the header: SILU, GELU, CLAMPED or GELU_ERF
    limit: float = 0.0
    alpha: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Convolution:
    """The short convolution before a gated delta net: channels are q, k, v of *width* a head."""

    x: F32  # [rows, channels and more]
    gates: F32  # [rows, 2 * heads]: beta and decay before their functions
    weight: F32  # [kernel_size, channels]
    rate: F32  # [heads]: the logarithm of decay is rate * softplus(decay + bias)
    bias: F32  # [heads]
    kept: (
        F32  # [slots, capacity, channels + 2 * heads]: what came last, token t in row t % capacity
    )
    out: F32  # [rows, channels]: q and k of length 1
    out_gates: F32  # [rows, 2 * heads]: beta, logarithm of decay
    heads: int
    k_heads: int
    width: int
    eps: float


@dataclass(frozen=True, slots=True)
class Routing:
    """Buffers of a mixture of experts: which experts each row goes to, and its copies."""

    expert_weights: F32  # [rows, top_k]
    scatter_indices: npt.NDArray[np.int64]  # [rows, top_k]: the positions of a row's copies
    gather_indices: npt.NDArray[np.int64]  # [rows * top_k]: the row of each copy
    groups: npt.NDArray[np.void]  # [min(experts, rows * top_k)] of GROUP
    experts: int

    @property
    def top_k(self) -> int:
        """The number of experts of a row."""
        return int(self.expert_weights.shape[1])


SILU = Unit()
GROUP = np.dtype([("matrix", "<i4"), ("rows", "<i4"), ("first", "<i8")])  # npurt_group
