"""Round activations as the DSP does: dsp/kernels/quantise_row.h in numpy.

The integers equal those of the kernel, bit for bit.  Verification computes them for each product
that it checks, so speed matters.
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError
from npurt.quant.activations import not_finite

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

BLOCK = 32  # columns per scale in the data that the kernels read
GROUPS = (BLOCK, 128, 0)  # columns for which the scale may be equal; 0: the whole row
ROUND_UP = 0x40000
LEAST_TOP = 40  # biased exponent of 2^-87
LIFT = 64  # log2 of the factor for rows below 2^-87
ROW_EXPONENT = 148


@dataclass(frozen=True, slots=True)
class Quantised:
    """Rows of activations: x = code * scale * 2^exponent.

    Attributes:
        codes: int8 ``[M, K]``, -127..127.
        scales: int32 ``[M, K / 32]``, 1..32767; equal within a group.
        exponents: int32 ``[M]``.
    """

    codes: I8
    scales: I32
    exponents: I32

    def values(self) -> F64:
        """Return the exact activations ``[M, K]`` that the DSP multiplies."""
        blocks = self.codes.reshape(*self.scales.shape, BLOCK) * self.scales[..., None]
        exact: F64 = np.ldexp(blocks.astype(np.float64), self.exponents[:, None, None])
        return exact.reshape(self.codes.shape)


def quantise(x: F32, group: int = BLOCK) -> Quantised:
    """Return *x* ``[M, K]`` as the DSP rounds it, with one scale for *group* columns (0: the row).

    Raises:
        LayoutError: *x* is not float32 ``[M, K]`` with K a multiple of 32, or *group* is not in
            `GROUPS`.
        NumericsError: *x* holds a NaN or infinity.
    """
    if x.dtype != np.float32 or x.ndim != 2 or x.shape[1] % BLOCK or group not in GROUPS:
        raise LayoutError(
            f"cannot quantise {x.dtype} {x.shape} in groups of {group}",
            remedy="pass float32 [M, K], K padded with zeros to a multiple of 32; group 32, 128, 0",
        )
    bits = np.ascontiguousarray(x).view(np.uint32).astype(np.int64)
    magnitudes = bits & 0x7FFFFFFF
    blocks = magnitudes.reshape(len(x), x.shape[1] // BLOCK, BLOCK)
    greatest = _shared(blocks.max(axis=2, initial=0), group)
    of_row = greatest.max(axis=1, initial=0)
    if (of_row >= 0x7F800000).any():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise not_finite(f"activation row {row}, column {column} is {x[row, column]}")
    small = of_row + ROUND_UP >> 23 < LEAST_TOP
    if small.any():
        blocks[small], greatest[small], of_row[small] = (
            _lifted(part[small]) for part in (blocks, greatest, of_row)
        )
    top = np.maximum(of_row + ROUND_UP >> 23, LEAST_TOP)
    scales = _scales(greatest, top[:, None])
    codes = _codes(blocks, scales, top[:, None]).reshape(x.shape)
    np.negative(codes, out=codes, where=np.signbit(x))
    exponents = np.where(of_row > 0, top - ROW_EXPONENT - LIFT * small, 0).astype(np.int32)
    return Quantised(codes, scales.astype(np.int32), exponents)


def multiplied(x: F32, group: int = BLOCK) -> F64:
    """Return the exact activations that the DSP multiplies for *x*; errors as `quantise`."""
    return quantise(x, group).values()


def _lifted(magnitudes: I64) -> I64:
    """Return the bits of float32 numbers multiplied by 2^LIFT; results are normal or 0.

    The numbers must be below 2^-62.  No float32 arithmetic is used, because a process may flush
    subnormal numbers to 0.
    """
    subnormal = np.ldexp(magnitudes.astype(np.float64), LIFT - 149).astype(np.float32)
    return np.where(
        magnitudes < 1 << 23, subnormal.view(np.uint32), magnitudes + (LIFT << 23)
    ).astype(np.int64)


def _shared(greatest: I64, group: int) -> I64:
    """Return for each block the greatest magnitude among the blocks that share its scale."""
    if group == BLOCK:
        return greatest
    count = greatest.shape[1] if group == 0 else group // BLOCK
    starts = np.arange(0, greatest.shape[1], max(count, 1))
    common = np.maximum.reduceat(greatest, starts, axis=1) if starts.size else greatest
    shared: I64 = np.repeat(common, count, axis=1)[:, : greatest.shape[1]]
    return shared


def _scales(greatest: I64, top: I64) -> I64:
    """Return V / 508, rounded up a little; V is the magnitude in units of 2^(top - 150)."""
    v = (greatest & 0x7FFFFF | 0x800000) >> np.minimum(top - (greatest >> 23), 31)
    scales: I64 = (v + (v >> 7) + (v >> 14) >> 9) + 1
    return scales


def _codes(blocks: I64, scales: I64, top: I64) -> I8:
    """Return magnitudes ``[M, B, 32]`` divided by their scales, at most 127."""
    inverse, spare = _reciprocals()
    mantissas = blocks >> 9 & 0x3FFF | 0x4000
    product = _product(mantissas, inverse[scales][..., None])
    shift = (top + 6 - spare[scales])[..., None] - (blocks >> 23)
    doubled = product >> np.minimum(shift, 15)
    return (doubled + 1 >> 1).astype(np.int8)


@functools.cache
def _reciprocals() -> tuple[I64, I64]:
    """Return for scales 0..32767 the reciprocals, of 15 bits, and their shifts.

    reciprocal = 2^(29 - shift) / scale, computed as in quantise_row.h: a linear approximation, then
    two Newton steps.  The shift normalises the scale to 15 bits.
    """
    scales = np.arange(1 << 15, dtype=np.int64)
    scales[0] = 1  # no group has the scale 0
    spare = 15 - np.frexp(scales)[1].astype(np.int64)
    d = scales << spare  # 2^14..2^15 - 1
    y = 1515870810 - _product(1010580540, d)  # 48/17 - 32/17 d, in Q29
    error = (1 << 29) - _product(y, d)
    y = y + _product(y, error << 2 >> 16)
    error = (1 << 29) - _product(y, d)
    y = y + (_product(y, error << 9 >> 16) >> 7)
    return y >> 15, spare


def _product(a: I64 | int, b: I64) -> I64:
    """Return a * b / 2^15, rounded as the instructions vmpy and vmpyo round."""
    return a * b + (1 << 14) >> 15
