"""The CPU as a device: the oracle, the fallback, and the decode path on many boards.

May import all rooms of `npurt.cpu`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from npurt.cpu.kernels import abi, layout
from npurt.cpu.lowering.constants import pack_each
from npurt.cpu.lowering.segment import CpuSegment
from npurt.cpu.lowering.steps import Steps
from npurt.cpu.pool.engine import Engine
from npurt.cpu.pool.memory import Arena, allocate
from npurt.cpu.pool.operands import Image
from npurt.cpu.pool.packed import CpuPacked
from npurt.cpu.pool.program import Program, batches
from npurt.cpu.pool.table import RowTable
from npurt.delta import DeltaNet, DeltaNets, require_delta
from npurt.device import F32, Caps, Device, MatMul, Packed, check_product
from npurt.errors import LayoutError, UnsupportedOp
from npurt.graph import ops
from npurt.graph.graph import WRITTEN, Graph
from npurt.graph.ops import Op
from npurt.quant.activations import GROUP, quantize_activations
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME
from npurt.segment import Limits, Segment, Weights

F64 = npt.NDArray[np.float64]


class CpuDevice(Device, DeltaNets):
    """The host's own cores.

    Args:
        threads: How many; None or 0 chooses from affinity, cgroup quota and core types.
        isa: Kernel set, such as ``avx2``; the best one by default.

    Raises:
        DeviceNotFound: The kernel library cannot be loaded.
        SettingError: *threads* or *isa* is not possible here.
    """

    def __init__(self, threads: int | None = None, isa: str = "") -> None:
        self.engine = Engine(threads, isa)
        detail = f"{self.engine.isa_name}, {self.engine.threads} threads"
        self.caps = Caps(name="cpu", detail=detail, simulated=False)

    def why_not(self, op: MatMul) -> str | None:
        """Return None, or the first rule that *op* breaks."""
        fmt = BY_NAME.get(op.format)
        if fmt is None:
            return f"there is no kernel for {op.format}"
        if op.k % fmt.block:
            return f"{op.format} needs K % {fmt.block} == 0"
        most = abi.limits().columns
        if max(op.n, op.k) > most:
            return f"N or K is more than {most}"
        return None

    def pack(self, tensor: QTensor, *, int16: bool | None = False) -> CpuPacked:
        """Lay out one weight ``[N, K]``."""
        return self.pack_all([tensor])[0]

    def pack_all(
        self,
        tensors: Sequence[QTensor],
        done: Callable[[int], None] = lambda index: None,
    ) -> list[CpuPacked]:
        """Lay out many weights, or stacks ``[E, N, K]``, calling *done* with the index of each.

        All of them lie in one allocation, and one run lays out many: see `batches`.
        """
        sizes = [self._image_bytes(tensor) for tensor in tensors]
        arena = Arena(sum(map(Arena.room, sizes)))
        packed = []
        for batch in batches(sizes):
            program = Program(self.engine)
            for i in batch:
                tensor = tensors[i]
                *experts, n, k = tensor.shape
                image = Image(arena.allocate(sizes[i]), n, k, tensor.format)
                if tensor.size:
                    blocks = np.ascontiguousarray(tensor.blocks)
                    program.pack(blocks, replace(image, n=n * math.prod(experts)))
                packed.append(CpuPacked(self, self.engine, tensor, image))
            program.run()
            for i in batch:
                done(i)
        return packed

    def _image_bytes(self, tensor: QTensor) -> int:
        if tensor.ndim < 2 or tensor.transposed:
            raise LayoutError(
                f"a weight is [N, K] or a stack [E, N, K], as in the file, not {tensor!r}",
                remedy="pass the tensor itself, not its .T",
            )
        *experts, n, k = tensor.shape
        reason = self.why_not(MatMul(1, k, n, tensor.format.name))
        if experts and n % layout.ROWS:
            reason = f"matrices of a stack need N % {layout.ROWS} == 0"
        if reason:
            raise UnsupportedOp(
                f"the CPU cannot pack {tensor!r}: {reason}",
                remedy="requantise the tensor to one of " + ", ".join(BY_NAME),
            )
        return math.prod(experts) * int(abi.lib().npurt_image_bytes(tensor.format.number, n, k))

    def matmul(self, x: F32, w: Packed, out: F32) -> None:
        """Write ``x @ w.T`` to *out*, as many rows at a time as a run takes."""
        check_product(self, x, [w], [out])
        assert isinstance(w, CpuPacked)
        most = abi.limits().rows
        for start in range(0, len(x), most):
            rows = slice(start, start + most)
            w.multiply(x[rows], out[rows])

    def matmul_i8(self, a: npt.NDArray[np.int8], b: npt.NDArray[np.int8]) -> npt.NDArray[np.int32]:
        """Return ``a @ b``, exact: a ``[M, K]``, b ``[K, N]``, K at most `MAX_EXACT_K`."""
        (m, k), n = a.shape, b.shape[1]
        if not (m and k and n):
            return np.zeros((m, n), np.int32)
        quads = -(-k // 4) * 4
        padded = -(-n // layout.ROWS) * layout.ROWS
        x = np.zeros((m, quads), np.int8)
        x[:, :k] = a
        minus = -128 * x.sum(axis=1, dtype=np.int32)
        image = allocate(padded * quads)
        y = np.empty((m, padded), np.int32)
        program = Program(self.engine)
        program.pack_i8(b, quads, image)
        program.run()
        most = abi.limits().rows
        for start in range(0, m, most):
            rows = slice(start, start + most)
            program = Program(self.engine)
            program.multiply_i8(x[rows], minus[rows], image, n, y[rows])
            program.run(RowTable.of(len(x[rows])))
        return y[:, :n]

    def multiplied(self, x: F32, w: Packed) -> F64:
        """Return x as the kernels see it: rounded to int8 per 32 where the weight is integer."""
        assert isinstance(w, CpuPacked)
        if not w.image.integer:
            return x.astype(np.float64)
        codes, scales = quantize_activations(x)
        blocks = codes.reshape(*scales.shape, GROUP).astype(np.float64) * scales[..., None]
        return blocks.reshape(x.shape)

    def why_not_delta(self, net: DeltaNet) -> str | None:
        """Return None, or the first rule that *net* breaks."""
        heads, width = net.v.shape[2:]
        reason = _why_not_width(width, abi.limits().delta)
        if reason:
            return reason
        if heads % net.k.shape[2]:
            return f"{heads} heads do not share {net.k.shape[2]} key heads evenly"
        if net.decay.shape[3] not in (1, width):
            return f"a head has {net.decay.shape[3]} decays, not 1 or {width}"
        return None

    def delta_net(self, net: DeltaNet) -> None:
        """Run *net* on the pool, as many tokens at a time as a run takes."""
        require_delta(self, net)
        most = abi.limits().rows
        for start in range(0, net.v.shape[1], most):
            part = net.after(start).first(most)
            program = Program(self.engine)
            program.delta(part)
            program.run(RowTable.of(part.v.shape[1]))

    def why_not_op(self, op: Op, limits: Limits) -> str | None:
        """Return None, or the first limit of the kernels that *op* exceeds.

        An op that has no kernel is computed in numpy.
        """
        if reason := _why_not_rows(limits):
            return reason
        if isinstance(op, ops.MatMul | ops.ExpertMatMul):
            n, k = op.out.columns, op.x.columns
            if isinstance(op, ops.ExpertMatMul) and n % layout.ROWS:
                return f"matrices of a stack need N % {layout.ROWS} == 0"
            return self.why_not(MatMul(limits.rows, k, n, op.weight.dtype))
        most = abi.limits()
        widest = max((t.columns for t in (*op.reads, *op.writes) if t.kind in WRITTEN), default=0)
        if widest > most.columns:
            return f"{widest} columns are more than {most.columns}"
        if isinstance(op, ops.Attention | ops.EncoderAttention):
            return _why_not_width(op.q.columns // op.heads, most.head)
        if isinstance(op, ops.GatedDeltaNet):
            return _why_not_width(op.v.columns // op.heads, most.delta)
        if isinstance(op, ops.ShortConv) and op.weight.columns > most.kernel_size:
            size = op.weight.columns
            return f"a convolution has a kernel size of {size}, more than {most.kernel_size}"
        if isinstance(op, ops.Route) and op.scores.columns > most.experts:
            return f"{op.scores.columns} experts are more than {most.experts}"
        return None

    def compile(self, part: Graph, weights: Weights, limits: Limits) -> Segment:
        """Make a segment of *part*: one program where all its ops have kernels.

        Raises:
            UnsupportedOp: A run has more rows than kernels take, or see `CpuSegment`.
        """
        if reason := _why_not_rows(limits):
            raise UnsupportedOp(
                f"the CPU cannot run {part.name}: {reason}",
                remedy="compile for fewer rows, and run long inputs in several runs",
            )
        place = functools.partial(pack_each, self.pack_all)
        return CpuSegment(place, functools.partial(Steps, self.engine), part, weights, limits)

    def close(self) -> None:
        """Stop the threads; packed weights go with their last reference."""
        self.engine.close()


def _why_not_rows(limits: Limits) -> str | None:
    """Return None, or why no kernel takes so many rows."""
    most = abi.limits().rows
    return f"a run of {limits.rows} rows is longer than {most}" if limits.rows > most else None


def _why_not_width(width: int, most: int) -> str | None:
    """Return None, or why no kernel takes heads of *width*."""
    step = abi.limits().head_step
    if width % step or not 0 < width <= most:
        return f"heads are {width} wide, not a multiple of {step} up to {most}"
    return None
