"""A weight on the CPU: its image, and the programs that multiply by it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from npurt.cpu.kernels import abi, layout
from npurt.cpu.pool.engine import Engine, Input, pointer
from npurt.cpu.pool.operands import Image
from npurt.cpu.pool.program import Program
from npurt.cpu.pool.table import RowTable
from npurt.device import F32, Device, Packed
from npurt.quant.tensor import QTensor

F64 = npt.NDArray[np.float64]

# Of every matrix of a weight: W^T r [E, K], and sum_n (r_n a_n)^2 [E], a_n being the norm of row n
# that bounds rounding.
Sums = tuple[F64, F64]

KEPT = 4  # programs of a packed weight, by number of rows


class CpuPacked(Packed):
    """A weight in the layout of the CPU kernels; a stack is one image after another.

    `image` says what one matrix is, and holds all of them.
    """

    def __init__(self, device: Device, engine: Engine, tensor: QTensor, image: Image) -> None:
        self.device = device
        self.engine = engine
        self.tensor = tensor
        self.image = image
        self._ready: dict[int, tuple[Input, Program]] = {}  # by rows, the last few

    def multiply(self, x: F32, out: F32) -> None:
        """Write ``x @ w.T`` to *out*, the rows of one run; keep the program for next time."""
        with self.engine.locked():
            if len(x) not in self._ready:
                if len(self._ready) == KEPT:
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
        """Return the panels that hold the first *n* rows."""
        n = min(-(-n // layout.ROWS) * layout.ROWS, self.n)
        number = self.image.format.number
        data = self.image.data[: abi.lib().npurt_image_bytes(number, n, self.k)]
        return CpuPacked(
            self.device, self.engine, self.tensor[:n], replace(self.image, data=data, n=n)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the image."""
        return self.image.data.nbytes

    @property
    def group(self) -> int:
        """Columns that share a scale; 1 for float weights."""
        return layout.group(self.image.format.number)

    @property
    def matrices(self) -> int:
        """Matrices of the stack, 1 where there is none."""
        return self.tensor.shape[0] if self.tensor.ndim == 3 else 1

    def matrix(self, index: int) -> "CpuPacked":
        """Return one matrix of a stack; of a weight ``[N, K]``, itself."""
        if self.tensor.ndim == 2:
            return self
        data = self.image.data.reshape(self.matrices, -1)[index]
        return CpuPacked(
            self.device, self.engine, self.tensor[index], replace(self.image, data=data)
        )


def transposed_matvecs(weights: Sequence[CpuPacked], vectors: Sequence[F64]) -> list[Sums]:
    """Return `Sums` of each weight and its vector r ``[N]``, all in one run."""
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
