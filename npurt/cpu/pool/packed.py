"""Weights packed for the CPU, and the programs that multiply by them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from npurt.cpu.kernels import abi, layout
from npurt.cpu.pool.engine import CpuThreadPool, Input, pointer
from npurt.cpu.pool.operands import Image
from npurt.cpu.pool.program import Program
from npurt.cpu.pool.table import RowTable
from npurt.device.device import F32, Device, Packed
from npurt.quant.tensor import QTensor

F64 = npt.NDArray[np.float64]

# For each of the E matrices of a weight: W^T r [E, K], and sum_n (r_n a_n)^2 [E], where a_n is the
# norm of |scale * code| + |offset| over row n.
Sums = tuple[F64, F64]

CACHED_PROGRAMS = 4  # cached programs of a packed weight, one per number of rows


class CpuPacked(Packed):
    """A weight in the layout of the CPU kernels; a stack is the concatenation of its matrices.

    `image.data` has all matrices; `image.n` and `image.k` are the size of one matrix.
    """

    def __init__(
        self, device: Device, engine: CpuThreadPool, tensor: QTensor, image: Image
    ) -> None:
        self.device = device
        self.engine = engine
        self.tensor = tensor
        self.image = image
        self._ready: dict[int, tuple[Input, Program]] = {}  # by number of rows

    def multiply(self, x: F32, out: F32) -> None:
        """Write ``x @ w.T`` to *out* in one run, and cache the program for the next call."""
        with self.engine:
            if len(x) not in self._ready:
                if len(self._ready) == CACHED_PROGRAMS:
                    del self._ready[next(iter(self._ready))]
                self._ready[len(x)] = self._program(len(x), out)
            source, program = self._ready[len(x)]
            source.values[:] = x
            program.ops[len(program) - 1].u.matmul.y = pointer("float *", out)
            program.run(RowTable.of(len(x)))

    def _program(self, rows: int, out: F32) -> tuple[Input, Program]:
        source = Input(rows, self.k, quantised=self.image.integer)
        program = Program(self.engine)
        if self.image.integer:
            program.quant(source)
        program.matmul(source, [self.image], out)
        return source, program

    def first(self, n: int) -> "CpuPacked":
        """Return a view of the first *n* rows, rounded up to whole panels."""
        n = min(-(-n // layout.ROWS) * layout.ROWS, self.n)
        number = self.image.format.number
        data = self.image.data[: abi.lib().npurt_image_bytes(number, n, self.k)]
        return CpuPacked(
            self.device, self.engine, self.tensor[:n], replace(self.image, data=data, n=n)
        )

    @property
    def nbytes(self) -> int:
        """The bytes of the image."""
        return self.image.data.nbytes

    @property
    def group(self) -> int:
        """The number of columns per block scale; 1 for float weights."""
        return layout.group(self.image.format.number)

    @property
    def matrices(self) -> int:
        """The number of matrices: E of a stack ``[E, N, K]``, 1 of a weight ``[N, K]``."""
        return self.tensor.shape[0] if self.tensor.ndim == 3 else 1

    def matrix(self, index: int) -> "CpuPacked":
        """Return one matrix of a stack; a weight ``[N, K]`` returns itself."""
        if self.tensor.ndim == 2:
            return self
        data = self.image.data.reshape(self.matrices, -1)[index]
        return CpuPacked(
            self.device, self.engine, self.tensor[index], replace(self.image, data=data)
        )


def transposed_matvecs(weights: Sequence[CpuPacked], vectors: Sequence[F64]) -> list[Sums]:
    """Return the `Sums` of each weight with its vector r ``[N]``, computed in one run."""
    program = Program(weights[0].engine)
    sums = []
    for weight, r in zip(weights, vectors, strict=True):
        images = weight.image.data.reshape(weight.matrices, -1)
        s = np.zeros((weight.matrices, weight.k))
        squares = np.zeros((weight.matrices, -(-weight.k // layout.RECORD)))
        for i, data in enumerate(images):
            program.transposed_matvec(replace(weight.image, data=data), r, s[i], squares[i])
        sums.append((s, squares))
    program.run()
    return [(s, squares.sum(axis=1)) for s, squares in sums]
