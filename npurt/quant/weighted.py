"""Quantise float32 to blocks with an importance for each column.

The importance of a column is the mean square of the inputs that the column is multiplied by.  The
expected squared error of a product is the sum of the weights' squared errors times the importance
of their columns.  For each block, several scales are tried: each one gives the nearest codes, and
weighted least squares gives the best scale for these codes.  The block with the smallest weighted
error is used, or the block of `quantize` if none is better.  So the weighted error is at most that
of `quantize`.
Sources: weighted least squares is textbook; importances as mean squares of inputs: llama.cpp
tools/imatrix/README.md, MIT.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.quant.blocks import Blocks
from npurt.quant.canonical import F32, IQ4
from npurt.quant.decode import dequantize
from npurt.quant.encode import IQ4_MIDPOINTS, as_codes, from_codes, packed_scales, quantize
from npurt.quant.types import Format

STEP = 1 << 16  # elements encoded at a time, to limit the size of about a dozen temporaries
# Each of these numbers gives a candidate scale: the range of a block / (the number of steps of the
# format + the number).
STRETCHES = np.linspace(-1.0, 1.5, 9, dtype=np.float32)

Search = Callable[[F32, F32], Iterator[Blocks]]


def quantize_weighted(x: npt.ArrayLike, fmt: Format, importance: npt.ArrayLike) -> Blocks:
    """Encode *x* ``[..., K]`` with the smallest squared error weighted by *importance*.

    Formats without a search are encoded by `npurt.quant.encode.quantize`.

    Args:
        x: The values.
        fmt: The format to encode to.
        importance: Numbers >= 0 that broadcast to ``[..., K]``.  In a block of zeros, all columns
            have the same importance.

    Raises: as `quantize`.
    """
    plain = quantize(x, fmt)
    if fmt.name not in _SEARCHES:
        return plain
    values = np.ascontiguousarray(x, dtype=np.float32)
    rows = values.reshape(-1, fmt.block)
    weights = np.broadcast_to(np.asarray(importance, np.float32), values.shape)
    weights = weights.reshape(-1, fmt.block)
    blocks = plain.reshape(-1)
    step = max(1, STEP // fmt.block)
    with np.errstate(all="ignore"):  # a candidate that overflows has an infinite or NaN error
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            blocks[part] = _best(rows[part], _relative(weights[part]), blocks[part], fmt)
    return blocks.reshape(plain.shape)


def _relative(weights: F32) -> F32:
    """Return *weights* scaled so that the largest of each block is 1; a block of zeros gets 1s."""
    maximum = weights.max(axis=-1, keepdims=True)
    return np.where(maximum > 0, weights / np.where(maximum > 0, maximum, 1), np.float32(1))


def _best(x: F32, w: F32, plain: Blocks, fmt: Format) -> Blocks:
    """Return the candidate with the smallest weighted error for each block."""
    best, lowest = plain.copy(), _error(x, w, plain, fmt)
    for blocks in _SEARCHES[fmt.name](x, w):
        error = _error(x, w, blocks, fmt)
        better = error < lowest  # False for NaN
        best[better], lowest[better] = blocks[better], error[better]
    return best


def _error(x: F32, w: F32, blocks: Blocks, fmt: Format) -> npt.NDArray[np.float64]:
    apart = (x - dequantize(blocks[:, None], fmt)).astype(np.float64)
    return np.asarray((w * apart * apart).sum(axis=-1))


# --- One scale ------------------------------------------------------------------------------------


def _nearest(half: int) -> Callable[[F32], F32]:
    """Return a function that rounds to integers from -half to half - 1."""
    return lambda v: np.clip(np.rint(v), -half, half - 1)


def _nearest_iq4(v: F32) -> F32:
    return IQ4.astype(np.float32)[np.searchsorted(IQ4_MIDPOINTS, v)]


def _scales(
    x: F32, w: F32, levels: Callable[[F32], F32], reach: float
) -> Iterator[npt.NDArray[np.float32]]:
    """Yield candidate scales ``[B]``.

    Args:
        x: Values ``[B, n]``.
        w: Weights ``[B, n]`` of the squared errors.
        levels: Rounds to the nearest level, a value that a code stands for.
        reach: The largest magnitude of a level.
    """
    at = abs(x).argmax(axis=-1)[:, None]
    largest = np.take_along_axis(x, at, axis=-1)[:, 0]
    for sign in (-1, 1):
        for stretch in STRETCHES:
            d = sign * largest / np.float32(reach * (1 + stretch / 8))
            level = levels(_over(x, d[:, None]))
            yield _over((w * x * level).sum(axis=-1), (w * level * level).sum(axis=-1))


def _over(values: Any, steps: Any) -> Any:
    """Return *values* / *steps*, or 0 for steps of 0."""
    return np.where(steps == 0, np.float32(0), values / np.where(steps == 0, 1, steps))


def _centred(name: str, half: int) -> Search:
    def search(x: F32, w: F32) -> Iterator[Blocks]:
        for d in _scales(x, w, _nearest(half), half):
            stored = d.astype(np.float16)
            codes = _nearest(half)(_over(x, stored.astype(np.float32)[:, None])) + half
            yield from_codes(name, as_codes(codes, x), d=stored)

    return search


def _iq4_nl(x: F32, w: F32) -> Iterator[Blocks]:
    for d in _scales(x, w, _nearest_iq4, 127):
        stored = d.astype(np.float16)
        codes = np.searchsorted(IQ4_MIDPOINTS, _over(x, stored.astype(np.float32)[:, None]))
        yield from_codes("iq4_nl", codes.astype(np.uint8), d=stored)


def _q6_k(x: F32, w: F32) -> Iterator[Blocks]:
    sub, weight = x.reshape(-1, 16), w.reshape(-1, 16)
    found = _least(sub, weight, _scales(sub, weight, _nearest(32), 32), _nearest(32))
    wanted = found.reshape(-1, 16)
    d = (abs(wanted).max(axis=-1) / 127).astype(np.float16)
    scales = np.clip(np.rint(_over(wanted, d.astype(np.float32)[:, None])), -127, 127)
    steps = d.astype(np.float32)[:, None] * scales
    codes = _nearest(32)(_over(x.reshape(-1, 16, 16), steps[..., None])) + 32
    yield from_codes("q6_k", as_codes(codes, x), d=d, scales=scales.astype(np.int8))


def _least(
    x: F32, w: F32, scales: Iterator[npt.NDArray[np.float32]], levels: Callable[[F32], F32]
) -> npt.NDArray[np.float32]:
    """Return the scale with the smallest weighted error for each block."""
    best, lowest = np.zeros(len(x), np.float32), np.full(len(x), np.inf)
    for d in scales:
        apart = x - d[:, None] * levels(_over(x, d[:, None]))
        error = (w * apart * apart).sum(axis=-1)
        better = error < lowest
        best[better], lowest[better] = d[better], error[better]
    return best


# --- A scale and a minimum ------------------------------------------------------------------------


def _lines(x: F32, w: F32, top: int, *, below: bool) -> Iterator[tuple[Any, Any]]:
    """Yield candidate scales and minima ``[B]``, for values ``scale * code + minimum``.

    Args:
        x: Values ``[B, n]``.
        w: Weights ``[B, n]`` of the squared errors.
        top: The largest code.
        below: True restricts minima to numbers <= 0.
    """
    low = x.min(axis=-1)
    low = np.minimum(low, 0) if below else low
    span = x.max(axis=-1) - low
    total = w.sum(axis=-1)
    for stretch in STRETCHES:
        d = span / np.float32(top + stretch)
        code = np.clip(np.rint(_over(x - low[:, None], d[:, None])), 0, top)
        mean_x = (w * x).sum(axis=-1) / total
        mean_code = (w * code).sum(axis=-1) / total
        from_mean = code - mean_code[:, None]
        slope = _over((w * from_mean * x).sum(axis=-1), (w * from_mean * code).sum(axis=-1))
        start = mean_x - slope * mean_code
        if below:  # replace a line that starts above 0 by the best line through 0
            through = _over((w * code * x).sum(axis=-1), (w * code * code).sum(axis=-1))
            slope, start = np.where(start > 0, through, slope), np.minimum(start, 0)
        yield np.maximum(slope, 0), start


def _minmax(name: str, top: int) -> Search:
    def search(x: F32, w: F32) -> Iterator[Blocks]:
        for slope, start in _lines(x, w, top, below=False):
            d, m = slope.astype(np.float16), start.astype(np.float16)
            above = x - m.astype(np.float32)[:, None]
            codes = np.clip(np.rint(_over(above, d.astype(np.float32)[:, None])), 0, top)
            yield from_codes(name, as_codes(codes, x), d=d, m=m)

    return search


def _minmax_k(name: str, top: int) -> Search:
    def search(x: F32, w: F32) -> Iterator[Blocks]:
        sub, weight = x.reshape(-1, 32), w.reshape(-1, 32)
        slope, floor = np.zeros((2, len(sub)), np.float32)
        lowest = np.full(len(sub), np.inf)
        for d, start in _lines(sub, weight, top, below=True):
            codes = np.clip(np.rint(_over(sub - start[:, None], d[:, None])), 0, top)
            apart = sub - start[:, None] - d[:, None] * codes
            error = (weight * apart * apart).sum(axis=-1)
            better = error < lowest
            slope[better], floor[better], lowest[better] = d[better], -start[better], error[better]
        d, scales = _of_six_bits(slope)
        dmin, mins = _of_six_bits(floor)
        steps = d.astype(np.float32)[:, None] * scales
        floors = dmin.astype(np.float32)[:, None] * mins
        above = x.reshape(-1, 8, 32) + floors[..., None]
        codes = np.clip(np.rint(_over(above, steps[..., None])), 0, top)
        fields = {"d": d, "dmin": dmin, "scales": packed_scales(scales, mins)}
        yield from_codes(name, as_codes(codes, x), **fields)

    return search


def _of_six_bits(wanted: F32) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.uint8]]:
    """Return a float16 scale per 8 numbers of *wanted*, and their integer multiples up to 63."""
    each = wanted.reshape(-1, 8)
    d = (each.max(axis=-1) / 63).astype(np.float16)
    counts = np.clip(np.rint(_over(each, d.astype(np.float32)[:, None])), 0, 63)
    return d, counts.astype(np.uint8)


_SEARCHES: dict[str, Search] = {
    "q4_0": _centred("q4_0", 8),
    "q5_0": _centred("q5_0", 16),
    "q4_1": _minmax("q4_1", 15),
    "q5_1": _minmax("q5_1", 31),
    "q4_k": _minmax_k("q4_k", 15),
    "q5_k": _minmax_k("q5_k", 31),
    "q6_k": _q6_k,
    "iq4_nl": _iq4_nl,
}
SEARCHED = tuple(_SEARCHES)  # the formats whose encoding depends on the importance
