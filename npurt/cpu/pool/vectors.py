"""Dequantise chosen rows of a matrix, for embeddings."""

import numpy as np
import numpy.typing as npt

from npurt.cpu.kernels import abi
from npurt.device.device import F32
from npurt.quant.decode import dequantize
from npurt.quant.tensor import QTensor
from npurt.quant.types import FLOATS


class Vectors:
    """The rows of *tensor* ``[N, K]``, dequantised on demand."""

    def __init__(self, tensor: QTensor) -> None:
        self._tensor = tensor
        (self._n, self._k), self._number = tensor.shape, tensor.format.number
        self._row_bytes = tensor.format.row_bytes(self._k)
        blocks = tensor.blocks
        in_c = tensor.dtype not in FLOATS and blocks.flags.c_contiguous
        self._bytes = abi.ffi().from_buffer(blocks.view(np.uint8)) if in_c else None

    def take(self, index: npt.NDArray[np.integer], out: F32) -> None:
        """Write the rows *index* ``[T]`` to *out* ``[T, K]``, which must be contiguous.

        `npurt.device.guard` has checked that 0 <= *index* < N.
        """
        if self._bytes is None:
            out[:] = dequantize(self._tensor.blocks[index], self._tensor.format)
            return
        ffi = abi.ffi()
        numbers = np.ascontiguousarray(index, np.int32)
        refused = abi.lib().npurt_take(
            self._number, ffi.cast("uint8_t *", self._bytes), self._n, self._k, self._row_bytes,
            ffi.from_buffer("int32_t[]", numbers), len(numbers), ffi.from_buffer("float[]", out),
        )  # fmt: skip
        assert not refused, f"rows {index} of {self._tensor}"
