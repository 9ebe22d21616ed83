"""Weights in int8 and float16; rows of activations with outliers are multiplied in float16."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32, F64, FLUSHED, UNIT, Packed
from npurt.errors import DeviceFull, NumericsError
from npurt.quant.tensor import QTensor
from npurt.rknpu.device.quantise import (
    BY_NAME,
    QuantisedWeight,
    quantise_weight,
    to_float16,
)
from npurt.rknpu.device.weights import RkPacked


class AdaptivePacked(Packed):
    """A weight in int8, and also in float16 for rows of x with outliers.

    An outlier is much larger than most values of its row.  For verification, `multiplied` returns
    the (rotated) int8 columns and the float16 columns, side by side.  In `quantise_input`, each row
    of x is zero in the columns of one of the two formats.

    Attributes:
        int8: The weight in int8.
        float16: The weight in float16; None until a row needs it; `int8` if float16 is impossible.
    """

    def __init__(self, int8: RkPacked) -> None:
        self.int8 = int8
        self.float16: RkPacked | None = None
        self.tensor = int8.tensor
        self.device = int8.device

    @property
    def nbytes(self) -> int:
        """Bytes of the images."""
        outliers = self.float16.nbytes if self.float16 and self.float16 is not self.int8 else 0
        return self.int8.nbytes + outliers

    def outlier_rows(self, x: F32) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows of x whose int8 rounding error exceeds the int8 scheme's.

        Two passes of int8 would not help: they reduce the rounding error of x, but the outliers
        multiply the rounding error of the weight.

        Raises:
            NumericsError: x holds NaN or infinity.
        """
        error = BY_NAME["int8"].x_error
        outliers = np.zeros(len(x), np.bool_)
        for part in self.int8.inputs:
            outliers |= part.outlier_rows(x, error)
        return outliers

    def images(
        self, x: F32, upload: Callable[[QTensor, QuantisedWeight], RkPacked]
    ) -> Iterator[tuple[npt.NDArray[np.bool_], RkPacked]]:
        """Yield pairs: a mask of rows of x, and the image that multiplies these rows.

        Args:
            upload: Uploads the float16 image at its first use.

        Raises:
            NumericsError: x holds NaN or infinity.
            DeviceFull: After a restart, the weight does not fit the memory.
        """
        outliers = self.outlier_rows(x)
        if not outliers.all():
            yield ~outliers, self.int8
        if outliers.any():
            yield outliers, self._float16_image(upload)

    def _float16_image(self, upload: Callable[[QTensor, QuantisedWeight], RkPacked]) -> RkPacked:
        """Return the float16 image; the int8 image if float16 overflows or memory is used up.

        Raises:
            DeviceFull: After a restart, neither image fits.  The next product tries again.
        """
        if self.float16 is None:
            try:
                self.float16 = upload(self.tensor, quantise_weight(self.tensor, BY_NAME["fp16"]))
            except NumericsError:
                self.float16 = self.int8
            except DeviceFull:
                if not self.int8.has_memory:
                    raise
                self.float16 = self.int8
        return self.float16

    def multiplied(self, rows: slice) -> F64:
        """Return *rows* of the multiplied values: int8 columns, then float16 columns."""
        with np.errstate(over="ignore"):  # a weight that overflows has no float16 image
            halves = self.tensor[rows].dequantize().astype(np.float16).astype(np.float64)
        halves[~np.isfinite(halves)] = 0
        return np.concatenate([self.int8.multiplied(rows), halves], axis=1)

    def quantise_input(self, x: F32) -> F64:
        """Return x ``[M, K]`` after rounding, in the columns of `multiplied`."""
        outliers = np.zeros(len(x), np.bool_) if self.float16 is self.int8 else self.outlier_rows(x)
        values, halves = self.int8.quantise_input(x), np.zeros(x.shape)
        values[outliers] = 0
        halves[outliers] = to_float16(x[outliers])
        return np.concatenate([values, halves], axis=1)

    def error(self, rows: slice) -> F64:
        """Return the standard error of float16 products, which is larger than that of int8."""
        norms: F64 = np.linalg.norm(self.multiplied(rows), axis=1)
        return UNIT * math.sqrt(2 + self.k) * norms

    def floor(self, rows: slice) -> F64:
        """Return the error of results that may be flushed to zero."""
        return np.full(len(range(self.n)[rows]), 3 * FLUSHED)

    def peak(self, rows: slice, x: F64) -> F64:
        """Return an upper bound of the float32 values, the sums."""
        maximum: F64 = abs(x) @ abs(self.multiplied(rows)).T
        return maximum
