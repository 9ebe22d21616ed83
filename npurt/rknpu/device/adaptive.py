"""Weights in int8 and float16: rows of activations with outliers are multiplied in float16."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from npurt.device import F32, F64, FLUSHED, UNIT, Packed
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

    An outlier is much larger than most of its row.  The operands are the (rotated) int8 columns
    and the float16 columns, side by side; each row of x is zero in one of the two.

    Attributes:
        int8: The weight in int8.
        float16: The weight in float16; None until a row wants it.
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
        """Return which rows of x have a larger int8 rounding error than the scheme was chosen for.

        Two passes would mend the rounding of x.  They would not mend the rounding of the weight,
        whose error the largest numbers of x multiply.

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
        """Yield each image that rows of x are multiplied by, after the mask of these rows.

        Args:
            upload: Uploads the float16 image when it is needed first.

        Raises:
            NumericsError: x holds NaN or infinity.
            DeviceFull: A restart found no room for the weight.
        """
        outliers = self.outlier_rows(x)
        if not outliers.all():
            yield ~outliers, self.int8
        if outliers.any():
            yield outliers, self._float16_image(upload)

    def _float16_image(self, upload: Callable[[QTensor, QuantisedWeight], RkPacked]) -> RkPacked:
        """Return the float16 image; the int8 image when float16 or the memory cannot hold it.

        Raises:
            DeviceFull: A restart found no room for either image.  The next product tries again.
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
        """Return *rows* of the values that are multiplied; see the class."""
        with np.errstate(over="ignore"):  # then there is no `float16`, and no x to multiply it
            halves = self.tensor[rows].dequantize().astype(np.float16).astype(np.float64)
        halves[~np.isfinite(halves)] = 0
        return np.concatenate([self.int8.multiplied(rows), halves], axis=1)

    def quantise_input(self, x: F32) -> F64:
        """Return x ``[M, K]`` as it multiplies these values."""
        outliers = np.zeros(len(x), np.bool_) if self.float16 is self.int8 else self.outlier_rows(x)
        values, halves = self.int8.quantise_input(x), np.zeros(x.shape)
        values[outliers] = 0
        halves[outliers] = to_float16(x[outliers])
        return np.concatenate([values, halves], axis=1)

    def error(self, rows: slice) -> F64:
        """Return the standard error: that of float16 products, which round the most."""
        norms: F64 = np.linalg.norm(self.multiplied(rows), axis=1)
        return UNIT * math.sqrt(2 + self.k) * norms

    def floor(self, rows: slice) -> F64:
        """Return the further error of results, which may be flushed to zero."""
        return np.full(len(range(self.n)[rows]), 3 * FLUSHED)

    def peak(self, rows: slice, x: F64) -> F64:
        """Return a bound of the sums; values before them are integers, or smaller."""
        most: F64 = abs(x) @ abs(self.multiplied(rows)).T
        return most
