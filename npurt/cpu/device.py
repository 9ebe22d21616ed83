"""The CPU device: fallback for other devices, and the fastest device for decoding on many boards.

May import all subpackages of `npurt.cpu`.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from npurt.cpu.kernels import abi, layout
from npurt.cpu.lowering.constants import pack_each
from npurt.cpu.lowering.segment import CpuSegment
from npurt.cpu.lowering.steps import Steps
from npurt.cpu.pool.checked import NamedWeight, probes_of_images
from npurt.cpu.pool.engine import CpuThreadPool
from npurt.cpu.pool.memory import BumpAllocator, allocate
from npurt.cpu.pool.operands import Image
from npurt.cpu.pool.packed import CpuPacked
from npurt.cpu.pool.program import Program, batches
from npurt.cpu.pool.table import RowTable
from npurt.cpu.state.integers import IntegerState
from npurt.device.delta import DeltaNet, DeltaNets, DeltaState, require_delta
from npurt.device.device import F32, Caps, Device, MatMul, Packed, check_product
from npurt.device.segment import NO_FOREIGN, Limits, RunForeign, Segment, Weights
from npurt.device.verify import Probe
from npurt.errors import LayoutError, UnsupportedOp
from npurt.graph import ops
from npurt.graph.graph import WRITTEN, Graph
from npurt.graph.ops import Op
from npurt.quant.activations import GROUP, quantize_activations
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME

F64 = npt.NDArray[np.float64]


class CpuDevice(Device, DeltaNets):
    """The cores of the host.

    Args:
        threads: The number of threads; None or 0 chooses it from affinity, cgroup quota and core
            types.
        isa: The kernels' instruction set, such as ``avx2``; by default the fastest one that this
            CPU supports.

    Raises:
        DeviceNotFound: The kernel library cannot be loaded.
        SettingError: *threads* is out of range, or this CPU does not support *isa*.
    """

    def __init__(self, threads: int | None = None, isa: str = "") -> None:
        self.engine = CpuThreadPool(threads, isa)
        detail = f"{self.engine.isa_name}, {self.engine.threads} threads"
        self.caps = Caps(name="cpu", detail=detail, simulated=False)

    def why_not(self, op: MatMul) -> str | None:
        """Return None if the CPU can run *op*, else the first reason why not."""
        fmt = BY_NAME.get(op.format)
        if fmt is None:
            return f"there is no kernel for {op.format}"
        if op.k % fmt.block:
            return f"{op.format} needs K % {fmt.block} == 0"
        maximum = abi.limits().columns
        if max(op.n, op.k) > maximum:
            return f"N or K is more than {maximum}"
        return None

    def pack(self, tensor: QTensor, *, int16: bool | None = False) -> CpuPacked:
        """Pack one weight ``[N, K]``."""
        return self.pack_all([tensor])[0]

    def pack_all(
        self,
        tensors: Sequence[QTensor],
        done: Callable[[int], None] = lambda index: None,
    ) -> list[CpuPacked]:
        """Pack weights ``[N, K]`` or stacks ``[E, N, K]``; call *done* with the index of each one.

        All images are in one allocation, and one run packs many weights: see `batches`.
        """
        sizes = [self._image_bytes(tensor) for tensor in tensors]
        allocator = BumpAllocator(sum(map(BumpAllocator.padded, sizes)))
        packed = []
        for batch in batches(sizes):
            program = Program(self.engine)
            for i in batch:
                tensor = tensors[i]
                *experts, n, k = tensor.shape
                image = Image(allocator.allocate(sizes[i]), n, k, tensor.format)
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
                f"cannot pack {tensor!r}: a weight must be [N, K] or [E, N, K], not transposed",
                remedy="pass the tensor itself, not its .T",
            )
        *experts, n, k = tensor.shape
        reason = self.why_not(MatMul(1, k, n, tensor.format.name))
        if experts and n % layout.ROWS:
            reason = f"the matrices of a stack need N % {layout.ROWS} == 0"
        if reason:
            raise UnsupportedOp(
                f"the CPU cannot pack {tensor!r}: {reason}",
                remedy="requantise the tensor to one of " + ", ".join(BY_NAME),
            )
        return math.prod(experts) * int(abi.lib().npurt_image_bytes(tensor.format.number, n, k))

    def matmul(self, x: F32, w: Packed, out: F32) -> None:
        """Write ``x @ w.T`` to *out*, in runs of at most ``abi.limits().rows`` rows."""
        check_product(self, x, [w], [out])
        assert isinstance(w, CpuPacked)
        maximum = abi.limits().rows
        for start in range(0, len(x), maximum):
            rows = slice(start, start + maximum)
            w.multiply(x[rows], out[rows])

    def matmul_i8(self, a: npt.NDArray[np.int8], b: npt.NDArray[np.int8]) -> npt.NDArray[np.int32]:
        """Return the exact product ``a @ b`` of ``[M, K]`` and ``[K, N]``; K <= `MAX_EXACT_K`."""
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
        maximum = abi.limits().rows
        for start in range(0, m, maximum):
            rows = slice(start, start + maximum)
            program = Program(self.engine)
            program.multiply_i8(x[rows], minus[rows], image, n, y[rows])
            program.run(RowTable.of(len(x[rows])))
        return y[:, :n]

    def multiplied(self, x: F32, w: Packed) -> F64:
        """Return *x* with the rounding that the kernels apply before they multiply it by *w*.

        For a weight of integers, *x* is rounded to int8 with one scale per 32 columns; for a float
        weight, *x* is unchanged.
        """
        assert isinstance(w, CpuPacked)
        if not w.image.integer:
            return x.astype(np.float64)
        codes, scales = quantize_activations(x)
        blocks = codes.reshape(*scales.shape, GROUP).astype(np.float64) * scales[..., None]
        return blocks.reshape(x.shape)

    def probe(self, name: str, packed: Packed) -> Probe:
        """Return the probe of *packed*, whose sums are computed in C from the image."""
        assert isinstance(packed, CpuPacked)
        return probes_of_images([(name, packed, None)])[0]

    def why_not_delta(self, net: DeltaNet) -> str | None:
        """Return None if the CPU can run *net*, else the first reason why not."""
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
        """Run *net* on the thread pool, in runs of at most ``abi.limits().rows`` tokens."""
        require_delta(self, net)
        maximum = abi.limits().rows
        for start in range(0, net.v.shape[1], maximum):
            part = net.after(start).first(maximum)
            program = Program(self.engine)
            program.delta(part)
            program.run(RowTable.of(part.v.shape[1]))

    def integer_delta_state(self, net: DeltaNet) -> DeltaState:
        """Return a state in integers; results are equal to those of a Hexagon bit for bit.

        Raises:
            UnsupportedOp: `why_not_delta` has a reason against *net*.
        """
        require_delta(self, net)
        return IntegerState(net)

    def why_not_op(self, op: Op, limits: Limits) -> str | None:
        """Return None, or the first limit of the kernels that *op* exceeds.

        None does not mean that *op* has a kernel: ops without kernels are computed in numpy.
        """
        if reason := _why_not_rows(limits):
            return reason
        if isinstance(op, ops.MatMul | ops.ExpertMatMul):
            n, k = op.out.columns, op.x.columns
            if isinstance(op, ops.ExpertMatMul) and n % layout.ROWS:
                return f"the matrices of a stack need N % {layout.ROWS} == 0"
            return self.why_not(MatMul(limits.rows, k, n, op.weight.dtype))
        maximum = abi.limits()
        widest = max((t.columns for t in (*op.reads, *op.writes) if t.kind in WRITTEN), default=0)
        if widest > maximum.columns:
            return f"{widest} columns are more than {maximum.columns}"
        if isinstance(op, ops.Attention | ops.EncoderAttention):
            return _why_not_width(op.q.columns // op.heads, maximum.head)
        if isinstance(op, ops.GatedDeltaNet):
            return _why_not_width(op.v.columns // op.heads, maximum.delta)
        if isinstance(op, ops.ShortConv) and op.weight.columns > maximum.kernel_size:
            size = op.weight.columns
            return f"a convolution has a kernel size of {size}, more than {maximum.kernel_size}"
        if isinstance(op, ops.Route) and op.scores.columns > maximum.experts:
            return f"{op.scores.columns} experts are more than {maximum.experts}"
        return None

    def compile(
        self,
        part: Graph,
        weights: Weights,
        limits: Limits,
        foreign: Mapping[str, RunForeign] = NO_FOREIGN,
    ) -> Segment:
        """Return a segment that runs *part*, as one program if all its ops have kernels.

        Args:
            foreign: See `npurt.device.segment.Host`.

        Raises:
            UnsupportedOp: *limits* allow more rows in a run than the kernels, or as `CpuSegment`.
        """
        if reason := _why_not_rows(limits):
            raise UnsupportedOp(
                f"the CPU cannot run {part.name}: {reason}",
                remedy="compile for fewer rows, and split long inputs into several runs",
            )
        place = functools.partial(pack_each, self.pack_all)
        steps = functools.partial(Steps, self.engine)
        return CpuSegment(place, steps, part, weights, limits, foreign)

    def head(
        self, steps: Steps, graph: Graph, weight: NamedWeight, vectors: Mapping[str, F32], rows: int
    ) -> Callable[[F32], F32]:
        """Return a function that runs *graph*, an output matrix and its norm, on a given stream.

        Args:
            steps: Empty steps, which the function runs.
            graph: The graph, from the input ``x``; see `npurt.llm.arch.forward.head`.
            weight: The matrix of the graph's product.
            vectors: The weights of the graph's norms, by name.
            rows: The maximum number of rows in a call.
        """
        from npurt.cpu.lowering.head import Head  # only drafts need it

        return Head(steps, graph, weight, vectors, rows)

    def close(self) -> None:
        """Stop the threads.  A packed weight is freed with the last reference to it."""
        self.engine.close()


def _why_not_rows(limits: Limits) -> str | None:
    """Return None, or the reason if *limits* allow more rows in a run than the kernels."""
    maximum = abi.limits().rows
    return f"a run of {limits.rows} rows has more than {maximum}" if limits.rows > maximum else None


def _why_not_width(width: int, maximum: int) -> str | None:
    """Return None, or the reason if no kernel supports heads of *width* columns."""
    step = abi.limits().head_step
    if width % step or not 0 < width <= maximum:
        return f"heads are {width} wide, not a multiple of {step} up to {maximum}"
    return None
