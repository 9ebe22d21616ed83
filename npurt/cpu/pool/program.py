"""Programs for the thread pool: lists of ops, built once and run once per token or batch.

Buffers are float32 arrays ``[rows, columns]``; the table of a run gives the number of rows in use.
Each method adds one op and returns its index.  A program keeps alive all buffers that its ops use.
"""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu.kernels import abi
from npurt.cpu.pool.engine import CpuThreadPool, Input, pointer
from npurt.cpu.pool.operands import SILU, Convolution, Heads, Image, Routing, UnitParameters
from npurt.cpu.pool.table import RowTable
from npurt.device.delta import DeltaNet
from npurt.errors import LayoutError

F32 = npt.NDArray[np.float32]

BATCH = 1 << 25  # bytes of the weights that one run packs, in about 10 ms


def batches(sizes: Sequence[int]) -> Iterator[range]:
    """Divide weights of *sizes* bytes into runs of about BATCH bytes; yield each run's indices.

    One run for many weights is faster than one run per weight: the pool's threads do not stop
    between weights, and the run does not hold the GIL.
    """
    start = total = 0
    for i, size in enumerate(sizes):
        total += size
        if total >= BATCH:
            yield range(start, i + 1)
            start, total = i + 1, 0
    if start < len(sizes):
        yield range(start, len(sizes))


class Program:
    """A list of ops for one engine.

    The last reference to a program may be dropped at any time after a run: see
    `CpuThreadPool.retire`.
    """

    def __init__(self, engine: CpuThreadPool) -> None:
        self.engine = engine
        self._structs: list[Any] = []
        self._keep: list[Any] = []
        self._ops: Any = None
        self._ran = False

    def __len__(self) -> int:
        return len(self._structs)

    @property
    def started(self) -> bool:
        """True if the array of ops exists: after the first run or use of `ops`."""
        return self._ops is not None

    @property
    def ops(self) -> Any:
        """The array of npurt_op.  After the first use of `ops`, no op may be added."""
        if self._ops is None:
            self._ops = abi.ffi().new("npurt_op[]", len(self))
            for i, struct in enumerate(self._structs):
                self._ops[i] = struct[0]
        return self._ops

    def run(self, table: RowTable | None = None, start: int = 0) -> int:
        """Run the ops from *start* on.

        Args:
            table: The rows of the run; None is one row.

        Returns:
            The index of the first op whose product fails verification, else the number of ops.
        """
        if not self._ran:
            weakref.finalize(self, self.engine.retire, self._keep).atexit = False
            self._ran = True
        ops = self.ops if self._ops is None else self._ops
        count = len(self._structs) - start
        return start + self.engine.run(ops + start, count, table or RowTable.of(1))

    def _add(self, kind: str, *, selects: bool = False, row_multiplier: int = 1) -> Any:
        op: Any = abi.ffi().new("npurt_op *")
        op.kind = getattr(abi.lib(), f"NPURT_{kind}")
        op.isa = self.engine.isa
        op.selects = selects
        op.row_multiplier = row_multiplier
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
        scale: float = 1.0,
        gathers: bool = False,
        centred: bool = False,
        bias: F32 | None = None,
    ) -> int:
        """Add an RMS norm: ``x += scale * add; out = x / sqrt(mean(x^2) + eps) * weight``.

        With *centred*, the op is a LayerNorm: it subtracts the mean of x first, and adds *bias* to
        the result.  With *gathers*, the op computes only the rows that the run selects, and writes
        them to the first rows of *out*.
        """
        op = self._add("NORM", selects=gathers).norm
        op.x, op.add, op.weight, op.bias = map(self._address, (x, add, weight, bias))
        op.centred = centred
        op.add_scale = scale
        op.eps = eps
        op.gathers = gathers
        self._input(op.out, out)
        return len(self) - 1

    def sum(self, add: F32, out: Input, *, scale: float = 1.0) -> int:
        """Add the op ``out += scale * add``; a quantised *out* also gets new codes."""
        op = self._add("SUM").sum
        op.x, op.add, op.scale = self._address(out.values), self._address(add), scale
        op.stride = out.k
        self._input(op.out, out)
        return len(self) - 1

    def sum_columns(self, add: F32, x: F32, *, scale: float = 1.0) -> int:
        """Add the op ``x += scale * add``.

        *add* is ``[rows, k]``, and *x* a view of k columns of a wider array.
        """
        op = self._add("SUM").sum
        op.x, op.add, op.scale = self._address(x), self._address(add), scale
        op.stride = x.strides[0] // x.itemsize
        op.out.values, op.out.k = op.x, x.shape[1]
        return len(self) - 1

    def cap(self, x: F32, *, factor: float = 1.0, cap: float = 0.0, selects: bool = False) -> int:
        """Add ``x = cap * tanh(factor * x / cap)``, or ``x = factor * x`` if *cap* is 0."""
        op = self._add("CAP", selects=selects).cap
        op.x, op.k, op.factor, op.cap = self._address(x), x.shape[1], factor, cap
        return len(self) - 1

    def quant(self, out: Input) -> int:
        """Add an op that computes the codes of *out* from its values."""
        self._input(self._add("QUANT").quant.out, out)
        return len(self) - 1

    def matmul(
        self,
        x: Input,
        weights: Sequence[Image],
        y: F32,
        *,
        biases: Sequence[F32 | None] = (),
        selects: bool = False,
        routing: Routing | None = None,
        column: int = 0,
    ) -> int:
        """Add ``x @ w.T + bias`` for one to three weights.

        The results are side by side in *y*, from *column* on.  The op computes all rows of the run,
        or, if it *selects*, as many rows as the run selects.

        With *routing*, each weight is a stack of ``routing.experts`` matrices, and *x* is the
        output of `gather`: each group of its rows is multiplied by the matrix of one expert.
        """
        op = self._add(
            "MATMUL", selects=selects, row_multiplier=routing.top_k if routing else 1
        ).matmul
        if routing:
            op.groups = self._address(routing.groups, "npurt_group *")
            op.matrices = routing.experts
        self._input(getattr(op, "in"), x)
        op.y = self._address(y)
        op.stride = y.shape[1]
        op.weights = len(weights)
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
        op.q_norm, op.k_norm = map(self._address, (heads.q_norm, heads.k_norm))
        op.stride, op.gated, op.eps = heads.qkv.shape[1], heads.gated, heads.eps
        op.k_cache = self._address(heads.k_cache, "void *")
        op.v_cache = self._address(heads.v_cache, "void *")
        op.pages, op.positions = heads.v_cache.shape[1], len(heads.cos)
        op.cache_bytes = heads.v_cache.itemsize
        op.heads, op.kv_heads, op.width = heads.heads, heads.kv_heads, heads.width
        op.rotated = 2 * heads.cos.shape[1]
        op.halves = heads.halves
        op.scale, op.softcap, op.window = heads.scale, heads.softcap, heads.window
        op.sinks, op.temperature = map(self._address, (heads.sinks, heads.temperature))
        op.whole = heads.whole
        return op

    def rope(self, heads: Heads) -> int:
        """Add an op that rotates q and k in the qkv buffer, and writes k and v to the caches."""
        self._attention("ROPE", heads)
        return len(self) - 1

    def attend(self, heads: Heads, out: F32) -> int:
        """Add causal attention over the caches: ``out = softmax(scale * q @ k.T) @ v``.

        *out* is ``[rows, heads * width]``.
        """
        self._attention("ATTEND", heads).out = self._address(out)
        return len(self) - 1

    def encode(self, heads: Heads, out: F32) -> int:
        """Add bidirectional attention over all rows of each sequence in the run.

        The op computes ``out = softmax(scale * q @ k.T) @ v`` after it rotates q and k.  It uses no
        caches.
        """
        self._attention("ENCODE", heads).out = self._address(out)
        return len(self) - 1

    def unit(
        self, gate_up: F32, out: Input, *, unit: UnitParameters = SILU, row_multiplier: int = 1
    ) -> int:
        """Add ``out = activation(gate) * up``; a row of *gate_up* has the gate, then up.

        GELU_ERF has no up: *gate_up* is the gate alone, and ``out = gelu(gate)``.
        """
        op = self._add("UNIT", row_multiplier=row_multiplier).unit
        op.gate_up = self._address(gate_up)
        op.activation = getattr(abi.lib(), f"NPURT_{unit.activation}")
        op.limit, op.alpha, op.offset = unit.limit, unit.alpha, unit.offset
        self._input(op.out, out)
        return len(self) - 1

    def conv(self, c: Convolution, *, replay: bool = False) -> int:
        """Add a convolution that also stores its inputs in ``c.stored_inputs``.

        With *replay*, the op reads its inputs from ``c.stored_inputs`` instead.
        """
        op = self._add("CONV").conv
        setattr(op, "in", self._address(c.x))
        op.gates, op.weight, op.rate, op.bias, op.kept, op.out, op.out_gates = map(
            self._address, (c.gates, c.weight, c.rate, c.bias, c.stored_inputs, c.out, c.out_gates)
        )
        op.slots, op.capacity, _ = c.stored_inputs.shape
        op.stride, op.kernel_size = c.x.shape[1], len(c.weight)
        op.heads, op.k_heads, op.width, op.eps = c.heads, c.k_heads, c.width, c.eps
        op.replay = replay
        return len(self) - 1

    def shortconv(self, x: F32, weight: F32, stored_inputs: F32, out: Input) -> int:
        """Add ``out = after * conv(before * value)``.

        Args:
            x: ``[rows, 3 * K]``: before, after and value, side by side.
            weight: ``[kernel_size, K]``; the last row is for the current token.
            stored_inputs: ``[slots, capacity, K]``: the last inputs of the convolution,
                token t in row t % capacity.
        """
        op = self._add("SHORTCONV").shortconv
        setattr(op, "in", self._address(x))
        op.weight, op.kept = self._address(weight), self._address(stored_inputs)
        op.slots, op.capacity, _ = stored_inputs.shape
        op.kernel_size = len(weight)
        self._input(op.out, out)
        return len(self) - 1

    def delta(
        self, net: DeltaNet, *, slots: F32 | None = None, control: npt.NDArray[Any] | None = None
    ) -> int:
        """Add a gated delta net.

        Args:
            slots: ``[slots, copies, *state.shape]``: each slot has the state of one sequence as
                copy 0, then saved copies; the default is one slot with ``net.state``.
            control: int32 ``[slots, 3]``, read in each run: the index of the copy to start from,
                the index of the copy to save the state to or -1, and the number of tokens of the
                run to process before saving.
        """
        op = self._add("DELTA").delta
        for name in ("q", "k", "v", "decay", "beta", "out"):
            array: F32 = getattr(net, name)
            setattr(op, name, self._address(array))
            sequence, token, head = (stride // array.itemsize for stride in array.strides[:3])
            setattr(op, f"{name}_at", {"token": token, "head": head, "sequence": sequence})
        slots = net.state[None, None] if slots is None else slots
        op.state = self._address(slots)
        op.slots, op.slot_stride = len(slots), slots.strides[0] // slots.itemsize
        op.control = self._address(control, "int32_t *")
        op.sequences, _, op.heads, op.width = net.v.shape
        op.k_heads, op.gates = net.k.shape[2], net.decay.shape[3]
        op.grouped, op.scale = net.grouped, net.scale
        return len(self) - 1

    def gate(self, x: F32, gate: F32, weight: F32, eps: float, out: Input) -> int:
        """Add ``out = x / rms(x) * weight * silu(gate)``, with rms over each head.

        *x* is ``[rows, K]``, *weight* has the width of a head, and *gate* is a view of K columns of
        a wider array.
        """
        op = self._add("GATE").gate
        op.x, op.gate, op.weight = map(self._address, (x, gate, weight))
        op.stride, op.width, op.eps = gate.strides[0] // gate.itemsize, len(weight), eps
        self._input(op.out, out)
        return len(self) - 1

    def route(
        self,
        scores: F32,
        to: Routing,
        *,
        normed: bool,
        scale: float = 1.0,
        over_chosen: bool = False,
    ) -> int:
        """Add an op that chooses the experts of each row by the first columns of *scores*.

        Expert weights are the softmax over all experts, or, with *over_chosen*, over the chosen
        experts.  They are multiplied by *scale*; with *normed*, they are divided by their sum
        first.
        """
        op = self._add("ROUTE").route
        op.scores, op.expert_weights = self._address(scores), self._address(to.expert_weights)
        op.scatter_indices = self._address(to.scatter_indices, "int64_t *")
        op.gather_indices = self._address(to.gather_indices, "int64_t *")
        op.groups = self._address(to.groups, "npurt_group *")
        op.stride, op.experts, op.top_k = scores.shape[1], to.experts, to.top_k
        op.normed, op.scale, op.over_chosen = normed, scale, over_chosen
        return len(self) - 1

    def gather(self, x: Input, routing: Routing, out: Input) -> int:
        """Add an op that copies each row of *x* to *out* once per expert, grouped by expert.

        Raises:
            LayoutError: *x* and *out* differ in K, or *out* has codes that *x* does not have.
        """
        have, wanted = (x.k, x.quantised, x.int16), (out.k, out.quantised, out.int16)
        if x.k != out.k or (out.quantised and have != wanted):
            raise LayoutError(
                f"rows of (K, quantised, int16) = {have} cannot be gathered as {wanted}",
                remedy="give both inputs the same K, quantised and int16",
            )
        op = self._add("GATHER", row_multiplier=routing.top_k).gather
        op.gather_indices = self._address(routing.gather_indices, "int64_t *")
        self._input(getattr(op, "in"), x)
        self._input(op.out, out)
        return len(self) - 1

    def weighted_sum(
        self,
        y: F32,
        routing: Routing,
        out: F32,
        *,
        shared: F32 | None = None,
        gate: F32 | None = None,
    ) -> int:
        """Add an op that writes the weighted sum of each row's expert results to *out*.

        It adds *shared* ``[rows, K]`` times the sigmoid of *gate*, a view of one column.
        """
        op = self._add("WEIGHTED_SUM").weighted_sum
        op.y, op.expert_weights, op.shared, op.gate, op.out = map(
            self._address, (y, routing.expert_weights, shared, gate, out)
        )
        op.scatter_indices = self._address(routing.scatter_indices, "int64_t *")
        op.k, op.top_k = y.shape[1], routing.top_k
        op.gate_stride = 0 if gate is None else gate.strides[0] // gate.itemsize
        return len(self) - 1

    def pack(self, blocks: npt.NDArray[Any], image: Image) -> int:
        """Add an op that packs the GGUF rows *blocks* into *image*."""
        op = self._add("PACK").packing
        op.blocks = self._address(blocks, "uint8_t *")
        op.image = self._address(image.data, "uint8_t *")
        op.n, op.k, op.type = image.n, image.k, image.format.number
        op.row_bytes = image.format.row_bytes(image.k)
        return len(self) - 1

    def transposed_matvec(
        self,
        image: Image,
        r: npt.NDArray[np.float64],
        s: npt.NDArray[np.float64],
        norms: npt.NDArray[np.float64],
    ) -> int:
        """Add ``s = W^T r`` and the sums of squares that bound rounding, for verification."""
        op = self._add("TRANSPOSED_MATVEC").transposed
        op.w.image = self._address(image.data, "uint8_t *")
        op.w.n, op.w.k, op.w.type = image.n, image.k, image.format.number
        op.w.check_r = self._address(r, "double *")
        op.s = self._address(s, "double *")
        op.norms = self._address(norms, "double *")
        return len(self) - 1

    def pack_i8(self, b: npt.NDArray[np.int8], k: int, image: npt.NDArray[np.uint8]) -> int:
        """Add an op that packs *b* ``[K, N]``, of any strides, for exact products.

        *k* is K rounded up to a multiple of 4.
        """
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
        """Add the exact ``y[rows, :n] = x @ b``; *minus* is -128 times the sum of each row of x."""
        op = self._add("I8").integers
        op.x = self._address(x, "int8_t *")
        op.minus = self._address(minus, "int32_t *")
        op.image = self._address(image, "uint8_t *")
        op.y = self._address(y, "int32_t *")
        op.n, op.k, op.stride = n, x.shape[1], y.shape[1]
        return len(self) - 1
