"""Weights as the integers that the DSP's kernels multiply: values and error bounds."""

import abc

import numpy as np

from npurt.device.device import F64, FLUSHED, Packed
from npurt.hexagon.layout import error_bound, images
from npurt.hexagon.layout.formats import ImageFormat


class IntegerPacked(Packed):
    """A weight as the integers that the DSP's kernels multiply.

    Attributes:
        format: The format of the integers.
        group: Columns of activations that share a scale; 0: the whole row.
    """

    format: ImageFormat
    group: int

    @abc.abstractmethod
    def integers(self, rows: slice) -> images.UnpackedIntegers:
        """Return the integers of *rows*."""

    def multiplied(self, rows: slice) -> F64:
        """Return the values that the kernels multiply by, with scales rounded to integers."""
        return images.values(self.integers(rows), self.format)

    def error(self, rows: slice) -> F64:
        """Return the standard error of the kernels' rounding; see `error_bound`."""
        return error_bound.error(self.integers(rows), self.format)

    def floor(self, rows: slice) -> F64:
        """Return the absolute error of results, because results below 2^-126 become 0."""
        return np.full(len(range(self.n)[rows]), FLUSHED)

    def peak(self, rows: slice, x: F64) -> F64:
        """Return an upper bound of the results; the integer sums in kernels cannot overflow."""
        bound: F64 = abs(x) @ abs(self.multiplied(rows)).T
        return bound
