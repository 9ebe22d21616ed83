"""Bound the rounding errors of products on the DSP, for verification.

A result is a sum over blocks b of 32 (or 16) columns (dsp/kernels/product.h):

    value = sum_b h_b round(w_b x_b / 2^15) V        V = 2^(15 + exponent of w + exponent of x)

Here h_b is the sum of code products in units of `Kernel.unit`; w_b and x_b are the integer scales;
the exponents are those of the rows of w and x.  A rounding causes an error between -1/2 and 1/2,
multiplied by a factor.  The errors are independent if the scales x_b differ:

    rounded number           factor of its error in the result
    product of the scales    h_b V; |h_b| <= |codes of w| |codes of x| (Cauchy-Schwarz)
    h_b, if unit > 1         w_b x_b / 2^15 V
    sum of codes of x        offset times V; it is rounded only if weights have offsets.  With 16
                             columns the product of x's scale and the offset is rounded instead

Two further errors are not of this form.  The sum of every step is rounded down by at most
2^shift V, with shift = ceil(log2(steps)).  The conversion to float32 adds 2^-24 of the result.

If c groups have the same x_b, as in repetitive data, their errors may be equal.  The error of their
sum is then at most c / 2, which is sqrt(3 c) times the standard error of c independent errors.

Every error is thus proportional to ``magnitude = 2^15 2^exponent max_b |codes of x in b|``, times
sqrt(3 c) if c > 1.  Both depend on x alone; w contributes the norms of its integers.  The largest
code of a row of x is at least `MIN_CODE`, and x_b is below 2^15.
"""

import numpy as np
import numpy.typing as npt

from npurt.hexagon.layout.formats import ImageFormat
from npurt.hexagon.layout.images import STEP, UnpackedIntegers
from npurt.hexagon.layout.quantise import BLOCK, I32, Quantised

F64 = npt.NDArray[np.float64]

VARIANCE = 1 / 12  # of an error that is uniform between -1/2 and 1/2
MIN_CODE = 126  # not 127, because quantise_row.h rounds scales up a little
FLOAT_UNIT = 2.0**-24


def magnitudes(x: Quantised, group: int = BLOCK) -> F64:
    """Return ``[M]``: for each row of activations, the factor that its error is proportional to.

    Args:
        x: The activations.
        group: Columns that share a scale; 0: the whole row, and no scales are multiplied.
    """
    blocks = x.codes.reshape(*x.scales.shape, BLOCK).astype(np.float64)
    largest = np.sqrt((blocks**2).sum(axis=2)).max(axis=1, initial=0)
    result: F64 = np.ldexp(largest, x.exponents + 15)
    if group:
        used = np.where(blocks.any(axis=2), x.scales, 0)[:, :: group // BLOCK]
        counts = np.array([_largest_count(row) for row in used], np.float64)
        result *= np.where(counts > 1, np.sqrt(3 * counts), 1.0)
    return result


def _largest_count(scales: I32) -> int:
    """Return how often the most frequent scale occurs; zeros mark empty groups and do not count."""
    _, counts = np.unique(scales[scales > 0], return_counts=True)
    return int(counts.max(initial=0))


def error(w: UnpackedIntegers, fmt: ImageFormat) -> F64:
    """Return ``[N]``: for each row of weights, the standard error of results per magnitude of x."""
    kind = fmt.kind
    k = w.codes.shape[1]
    count = -(-k // STEP)
    codes = _squares(w.codes) / kind.unit**2
    total = (FLOAT_UNIT * 2.0**15) ** 2 * codes * (k / 32)
    if kind.group:
        total += VARIANCE * codes
        total += (count / 2 * 2.0 ** (count - 1).bit_length() / MIN_CODE) ** 2
    if kind.group and kind.unit > 1:
        total += VARIANCE * _squares(w.scales) / MIN_CODE**2
    if w.offsets is not None and kind.sums > 0:
        total += VARIANCE * _squares(w.offsets) / MIN_CODE**2
    if w.offsets is not None and kind.sums < 0:  # |sum of 16 codes| <= 4 |codes|
        total += VARIANCE * (4 * kind.sums) ** 2 * w.offsets.shape[1]
    result: F64 = np.ldexp(np.sqrt(total), w.exponents)
    return result


def _squares(integers: npt.NDArray[np.int32]) -> F64:
    squares: F64 = (integers.astype(np.float64) ** 2).sum(axis=1)
    return squares
