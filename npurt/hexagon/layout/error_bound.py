"""The bound of the DSP's rounding errors, which verification uses.

In the words of dsp/kernels/product.h: a result is the sum over blocks b of 32 (or 16) columns

    value = sum_b h_b round(w_b x_b / 2^15) V        V = 2^(15 + row's exponent of w + that of x)

with h_b the sum of code products in units of `Kernel.unit`, w_b and x_b the integer scales.  What
is rounded is off by between -1/2 and 1/2, each independent of the others as long as the scales x_b
differ:

    the product of scales    times h_b V; |h_b| <= |codes of w| |codes of x| (Cauchy-Schwarz)
    h_b, where unit > 1      times w_b x_b / 2^15 V
    sums that offsets have   times the offset and V; of 16 columns the product of scales, again
    every step's sum         down, by at most 2^shift V, all the same way; shift = ceil(log2(steps))
    the result, to float32   by 2^-24 of it

If c groups have the same x_b, as in data that repeats, their errors may be equal: then their sum is
off by at most c / 2, which is sqrt(3 c) standard errors of the sum above.

So all is proportional to ``magnitude = 2^15 2^exponent max_b |codes of x in b|``, times sqrt(3 c),
which x alone determines; w contributes norms of its integers.  The largest code of a row of x is at
least `LEAST_CODE`, and x_b is below 2^15.
"""

import numpy as np
import numpy.typing as npt

from npurt.hexagon.layout.formats import ImageFormat
from npurt.hexagon.layout.images import STEP, Unpacked
from npurt.hexagon.layout.quantise import BLOCK, I32, Quantised

F64 = npt.NDArray[np.float64]

VARIANCE = 1 / 12  # of a rounding error
LEAST_CODE = 126  # scales are rounded up a little (quantise_row.h), so 127 may be missed
FLOAT_UNIT = 2.0**-24


def magnitudes(x: Quantised, group: int = BLOCK) -> F64:
    """Return for each row of activations the factor ``[M]`` that its error is proportional to.

    Args:
        group: Columns that share a scale; 0: all of a row, and then no scales are multiplied.
    """
    blocks = x.codes.reshape(*x.scales.shape, BLOCK).astype(np.float64)
    largest = np.sqrt((blocks**2).sum(axis=2)).max(axis=1, initial=0)
    result: F64 = np.ldexp(largest, x.exponents + 15)
    if group:
        used = np.where(blocks.any(axis=2), x.scales, 0)[:, :: group // BLOCK]
        alike = np.array([_most_alike(row) for row in used], np.float64)
        result *= np.where(alike > 1, np.sqrt(3 * alike), 1.0)
    return result


def _most_alike(scales: I32) -> int:
    """Return how often the most frequent scale occurs; those of empty groups are 0."""
    _, counts = np.unique(scales[scales > 0], return_counts=True)
    return int(counts.max(initial=0))


def error(w: Unpacked, fmt: ImageFormat) -> F64:
    """Return the standard error ``[N]`` of results for each row of weights, over `magnitudes`."""
    kind = fmt.kind
    k = w.codes.shape[1]
    count = -(-k // STEP)
    codes = _squares(w.codes) / kind.unit**2
    total = (FLOAT_UNIT * 2.0**15) ** 2 * codes * (k / 32)
    if kind.group:
        total += VARIANCE * codes
        total += (count / 2 * 2.0 ** (count - 1).bit_length() / LEAST_CODE) ** 2
    if kind.group and kind.unit > 1:
        total += VARIANCE * _squares(w.scales) / LEAST_CODE**2
    if w.offsets is not None and kind.sums > 0:
        total += VARIANCE * _squares(w.offsets) / LEAST_CODE**2
    if w.offsets is not None and kind.sums < 0:  # |sum of 16 codes| <= 4 |codes|
        total += VARIANCE * (4 * kind.sums) ** 2 * w.offsets.shape[1]
    result: F64 = np.ldexp(np.sqrt(total), w.exponents)
    return result


def _squares(integers: npt.NDArray[np.int32]) -> F64:
    squares: F64 = (integers.astype(np.float64) ** 2).sum(axis=1)
    return squares
