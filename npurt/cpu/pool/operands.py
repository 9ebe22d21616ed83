"""Groups of arguments of ops: weight images, attention heads, convolutions, expert routing."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.quant.types import Format

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Image:
    """A weight in the layout that the kernels read (layout.h)."""

    data: npt.NDArray[np.uint8]
    n: int
    k: int
    format: Format

    @property
    def integer(self) -> bool:
        """True if the kernels multiply the weight by int8 codes, False if by float values."""
        return self.format.block > 1


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention of one layer: its buffers, and the number and width of its heads.

    A row of *qkv* has the query heads, then the key heads, then the value heads.  If *gated*, each
    query head is followed by a gate of the same width.
    """

    qkv: F32  # [rows, (heads + 2 * kv_heads) * width]; if gated, 2 * heads instead of heads
    cos: F32  # [positions, rotated / 2]
    sin: F32
    k_cache: npt.NDArray[Any]  # layout as in `npurt.cpu.state.kv`, float16 or float32
    v_cache: npt.NDArray[Any]
    heads: int
    kv_heads: int
    width: int
    halves: bool  # True rotates the pairs (i, i + rotated / 2); False the pairs (2i, 2i + 1)
    scale: float
    gated: bool = False
    q_norm: F32 | None = None  # [width] or [heads * width]: RMS norm before the rotation
    k_norm: F32 | None = None
    eps: float = 0.0
    window: int = 0  # positions that a row attends to, including itself; 0 means no limit
    softcap: float = 0.0  # scores become softcap * tanh(score / softcap); 0 disables the cap
    sinks: F32 | None = None  # [heads]: one extra logit per head, for a value of zero
    temperature: F32 | None = None  # [positions]: factors of the queries

    @property
    def whole(self) -> bool:
        """True if q and k are normalised over all heads together, not per head."""
        return self.q_norm is not None and len(self.q_norm) != self.width


@dataclass(frozen=True, slots=True)
class UnitParameters:
    """A gated unit: ``activation(gate) * up``.

    CLAMPED is ``gate * sigmoid(alpha * gate) * (up + offset)``, with ``gate <= limit`` and
    ``-limit <= up <= limit`` clamped before.
    """

    activation: str = "SILU"  # NPURT_* in the header: SILU, GELU, CLAMPED or GELU_ERF
    limit: float = 0.0
    alpha: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Convolution:
    """The short convolution before a gated delta net; its channels are the heads of q, k and v."""

    x: F32  # [rows, columns]: the first columns are the channels
    gates: F32  # [rows, 2 * heads]: beta and decay before their activation functions
    weight: F32  # [kernel_size, channels]
    rate: F32  # [heads]: the logarithm of decay is rate * softplus(decay + bias)
    bias: F32  # [heads]
    stored_inputs: F32  # [slots, capacity, channels + 2 * heads], token t in row t % capacity
    out: F32  # [rows, channels]: heads of q and k are normalised to length 1
    out_gates: F32  # [rows, 2 * heads]: beta, then the logarithm of decay
    heads: int
    k_heads: int
    width: int
    eps: float


@dataclass(frozen=True, slots=True)
class Routing:
    """Buffers of a mixture of experts: the experts of each row, and the rows of each expert."""

    expert_weights: F32  # [rows, top_k]
    scatter_indices: npt.NDArray[np.int64]  # [rows, top_k]: the positions of a row's copies
    gather_indices: npt.NDArray[np.int64]  # [rows * top_k]: the row of each copy
    groups: npt.NDArray[np.void]  # [min(experts, rows * top_k)] of GROUP
    experts: int

    @property
    def top_k(self) -> int:
        """The number of experts per row."""
        return int(self.expert_weights.shape[1])


SILU = UnitParameters()
GROUP = np.dtype([("matrix", "<i4"), ("rows", "<i4"), ("first", "<i8")])  # npurt_group
