"""Programs for the pool: ops in the order they run, built once, run once per token or batch.

Buffers are float32 arrays ``[rows, columns]``; a run says how many of the rows are in use.  Each
method adds one op and returns its index.  Everything an op points to is kept alive here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu import abi
from npurt.cpu.engine import Engine, Input, pointer
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
    """The attention of one layer: its buffers and how its heads are cut."""

    qkv: F32  # [rows, (heads + 2 * kv_heads) * width]
    cos: F32  # [positions, rotated / 2]
    sin: F32
    k_cache: npt.NDArray[Any]  # [kv_heads, positions / 16, width, 16], float16 or float32
    v_cache: npt.NDArray[Any]  # [kv_heads, positions, width]
    heads: int
    kv_heads: int
    width: int
    halves: bool  # rotate (i, i + rotated / 2), not (2i, 2i + 1)
    scale: float


class Program:
    """A list of ops for one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._structs: list[Any] = []
        self._keep: list[Any] = []
        self._ops: Any = None

    def __len__(self) -> int:
        return len(self._structs)

    @property
    def started(self) -> bool:
        """True when the program has been sealed, usually by a first run."""
        return self._ops is not None

    @property
    def ops(self) -> Any:
        """The npurt_op array; the program takes no more ops once it has been asked for."""
        if self._ops is None:
            self._ops = abi.ffi().new("npurt_op[]", len(self))
            for i, struct in enumerate(self._structs):
                self._ops[i] = struct[0]
        return self._ops

    def run(self, rows: int = 1, position: int = 0, head: int = 0) -> int:
        """Run all ops on *rows* rows; return the index of one that did not verify, or ``len``."""
        return self.engine.run(self.ops, len(self), rows, position, head)

    def _add(self, kind: str, *, head: bool = False) -> Any:
        op: Any = abi.ffi().new("npurt_op *")
        op.kind = getattr(abi.lib(), f"NPURT_{kind}")
        op.isa = self.engine.isa
        op.head = head
        self._structs.append(op)
        return op.u

    def _address(self, array: npt.NDArray[Any] | None, ctype: str = "float *") -> Any:
        if array is None:
            return abi.ffi().NULL
        self._keep.append(array)
        return pointer(ctype, array)

    def _input(self, struct: Any, value: Input) -> None:
        self._keep.append(value)
        value.fill(struct)

    def norm(
        self,
        x: F32,
        weight: F32,
        eps: float,
        out: Input,
        *,
        add: F32 | None = None,
        from_head: bool = False,
    ) -> int:
        """``x += add; out = x / sqrt(mean(x^2) + eps) * weight``; *from_head* skips rows < head."""
        op = self._add("NORM", head=from_head).norm
        op.x, op.add, op.weight = map(self._address, (x, add, weight))
        op.eps = eps
        op.from_head = from_head
        self._input(op.out, out)
        return len(self) - 1

    def quant(self, out: Input) -> int:
        """Fill the codes of *out* from its values."""
        self._input(self._add("QUANT").quant.out, out)
        return len(self) - 1

    def matmul(
        self,
        x: Input,
        weights: Sequence[Image],
        y: F32,
        *,
        biases: Sequence[F32 | None] = (),
        head: bool = False,
    ) -> int:
        """``y = [x @ w.T + bias for each weight]``, side by side; at most three weights."""
        op = self._add("MATMUL", head=head).matmul
        self._input(getattr(op, "in"), x)
        op.y = self._address(y)
        op.stride = y.shape[1]
        op.weights = len(weights)
        column = 0
        for i, image in enumerate(weights):
            op.w[i].image = self._address(image.data, "uint8_t *")
            op.w[i].n, op.w[i].k, op.w[i].type = image.n, image.k, image.format.number
            op.w[i].bias = self._address(biases[i] if biases else None)
            op.w[i].column = column
            column += image.n
        return len(self) - 1

    def _attention(self, kind: str, heads: Heads) -> Any:
        op = self._add(kind).attention
        op.qkv, op.cos, op.sin = map(self._address, (heads.qkv, heads.cos, heads.sin))
        op.k_cache = self._address(heads.k_cache, "void *")
        op.v_cache = self._address(heads.v_cache, "void *")
        op.positions = heads.v_cache.shape[1]
        op.cache_bytes = heads.v_cache.itemsize
        op.heads, op.kv_heads, op.width = heads.heads, heads.kv_heads, heads.width
        op.rotated = 2 * heads.cos.shape[1]
        op.halves = heads.halves
        op.scale = heads.scale
        return op

    def rope(self, heads: Heads) -> int:
        """Rotate q and k in the qkv buffer; append k and v to the cache."""
        self._attention("ROPE", heads)
        return len(self) - 1

    def attend(self, heads: Heads, out: F32) -> int:
        """``out[rows, heads * width] = softmax(scale * q @ k.T, causal) @ v`` over the cache."""
        self._attention("ATTEND", heads).out = self._address(out)
        return len(self) - 1

    def silu(self, gate_up: F32, out: Input) -> int:
        """Add ``out = silu(gate) * up`` of the two halves of *gate_up*."""
        op = self._add("SILU").silu
        op.gate_up = self._address(gate_up)
        self._input(op.out, out)
        return len(self) - 1

    def pack(self, blocks: npt.NDArray[Any], image: Image) -> int:
        """Lay the GGUF rows *blocks* out as *image*."""
        op = self._add("PACK").packing
        op.blocks = self._address(blocks, "uint8_t *")
        op.image = self._address(image.data, "uint8_t *")
        op.n, op.k, op.type = image.n, image.k, image.format.number
        return len(self) - 1

    def spread(
        self,
        image: Image,
        r: npt.NDArray[np.float64],
        s: npt.NDArray[np.float64],
        norms: npt.NDArray[np.float64],
    ) -> int:
        """``s = W^T r`` and the squares that bound rounding, for verification."""
        op = self._add("SPREAD").spreading
        op.w.image = self._address(image.data, "uint8_t *")
        op.w.n, op.w.k, op.w.type = image.n, image.k, image.format.number
        op.w.check_r = self._address(r, "double *")
        op.s = self._address(s, "double *")
        op.norms = self._address(norms, "double *")
        return len(self) - 1

    def pack_i8(self, b: npt.NDArray[np.int8], k: int, image: npt.NDArray[np.uint8]) -> int:
        """Lay *b* ``[K, N]``, of any strides, out for exact products of *k* >= K columns."""
        op = self._add("PACK_I8").integers
        op.b = self._address(b, "int8_t *")
        op.real_k, op.n = b.shape
        op.stride_k, op.stride_n = b.strides
        op.image = self._address(image, "uint8_t *")
        op.k = k
        return len(self) - 1

    def multiply_i8(
        self,
        x: npt.NDArray[np.int8],
        minus: npt.NDArray[np.int32],
        image: npt.NDArray[np.uint8],
        n: int,
        y: npt.NDArray[np.int32],
    ) -> int:
        """``y[rows, :n] = x @ b``, exact; *minus* is -128 times the sum of each row of x."""
        op = self._add("I8").integers
        op.x = self._address(x, "int8_t *")
        op.minus = self._address(minus, "int32_t *")
        op.image = self._address(image, "uint8_t *")
        op.y = self._address(y, "int32_t *")
        op.n, op.k, op.stride = n, x.shape[1], y.shape[1]
        return len(self) - 1
