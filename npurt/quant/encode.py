"""Quantise float32 to blocks.

The encoders of Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, MXFP4 and BF16 return the same blocks as ggml's
reference quantiser.  The encoders of Q4_K, Q5_K, Q6_K and IQ4_NL differ: ggml searches for the
scales with the smallest squared error, while npurt uses the smallest scales that clip no value, in
one pass.  Their docstrings give bounds of the error; the mean squared error is 12 to 25 % above
ggml's on the tensor in tests/data/quants.
Source: ggml/src/ggml-quants.c, quantize_row_*_ref(); gguf-py, gguf/quants.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, NumericsError, UnsupportedOp, brief
from npurt.quant.blocks import DTYPES, Blocks
from npurt.quant.canonical import E2M1, F32, IQ4
from npurt.quant.planes import U8, join
from npurt.quant.types import Format, find

F16 = npt.NDArray[np.float16]
F64 = npt.NDArray[np.float64]
CHUNK = 1 << 18  # elements encoded at a time, so that temporaries stay small


def quantize(x: npt.ArrayLike, fmt: Format) -> Blocks:
    """Encode *x* ``[..., K]`` as blocks ``[..., K / fmt.block]`` of its dtype.

    Values are converted to float32 first.  F32, F16 and BF16 round to nearest even and preserve NaN
    and infinity, which block formats cannot represent.

    Raises:
        LayoutError: K is not a multiple of the block, or *x* is not an array of real numbers.
        NumericsError: *x* has NaN or infinity and *fmt* is a block format; or a finite value or a
            scale overflows in the format.
        UnsupportedOp: There is no encoder for *fmt*.
    """
    if fmt.name not in _ENCODERS:
        raise UnsupportedOp(
            f"npurt cannot quantise to {fmt.name}, it only reads this format",
            remedy=f"quantise to one of {', '.join(_ENCODERS)}",
        )
    values = _real(x, fmt)
    *lead, k = values.shape
    rows = values.reshape(-1, fmt.block)
    blocks: Blocks = np.empty(len(rows), DTYPES[fmt.name])
    step = CHUNK // fmt.block
    with np.errstate(all="ignore"):  # an overflow raises NumericsError below
        for start in range(0, len(rows), step):
            blocks[start : start + step] = _ENCODERS[fmt.name](rows[start : start + step])
    shaped = blocks.reshape(*lead, k // fmt.block)
    _require_representable(values, shaped, fmt)
    return shaped


def _real(x: npt.ArrayLike, fmt: Format) -> F32:
    """Return *x* as contiguous float32, after the checks of `quantize` on *x*."""
    try:
        array = np.asarray(x)
    except (TypeError, ValueError) as error:  # for example nested lists of different lengths
        raise LayoutError(
            f"cannot convert the input to an array: {error}",
            remedy="pass an array [..., K] of real numbers",
        ) from error
    if array.dtype.name == "bfloat16":  # a dtype of ml_dtypes
        array = array.astype(np.float32)
    if array.ndim == 0 or array.dtype.kind not in "fiu":
        raise LayoutError(
            f"cannot quantise a {array.ndim}-dimensional array of {array.dtype}",
            remedy="pass an array [..., K] of real numbers",
        )
    k = array.shape[-1]
    if k % fmt.block:
        raise LayoutError(
            f"K = {k} is not a multiple of {fmt.block}, the block of {fmt.name}",
            remedy=f"pad K with zeros to {-(-k // fmt.block) * fmt.block}, or use f16",
        )
    with np.errstate(over="ignore"):  # a float64 that overflows float32 raises below
        values = np.ascontiguousarray(array, dtype=np.float32)
    bad = ~np.isfinite(values) if fmt.block > 1 else np.isfinite(array) & ~np.isfinite(values)
    if bad.any():
        at = _first(bad)
        raise NumericsError(
            f"x{list(at)} is {array[at]}, which {fmt.name} cannot represent",
            remedy="replace NaN and infinity; keep magnitudes below 3.4e38",
        )
    return values


def _require_representable(values: F32, blocks: Any, fmt: Format) -> None:
    """Raise NumericsError if finite values were encoded as infinity."""
    if fmt.name == "bf16":
        infinite = (blocks & 0x7FFF) == 0x7F80
    elif fmt.block == 1:
        infinite = np.isinf(blocks)
    else:
        scales = [blocks[name] for name in blocks.dtype.names if blocks.dtype[name].kind == "f"]
        infinite = ~np.isfinite(scales).all(axis=0)
    if not infinite.any():
        return
    peaks = abs(values).reshape(*blocks.shape, fmt.block).max(axis=-1)
    bad = infinite & np.isfinite(peaks)
    if bad.any():
        at = _first(bad)
        start = [*at[:-1], at[-1] * fmt.block]
        raise NumericsError(
            f"the block at x{start} has magnitudes up to {peaks[at]:g}, too large for {fmt.name}",
            remedy="scale the tensor down and its product up, or keep it in f32",
        )


def _first(bad: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the index of the first True."""
    return tuple(int(i) for i in np.unravel_index(bad.argmax(), bad.shape))


# --- ggml's reference quantisers ----------------------------------------------------------------


def _blocks(name: str, **fields: Any) -> Blocks:
    """Return blocks of format *name* with *fields*; float32 scales are rounded to float16."""
    blocks: Any = np.empty(len(next(iter(fields.values()))), DTYPES[name])
    for field, values in fields.items():
        blocks[field] = values
    return np.asarray(blocks)


def from_codes(name: str, codes: U8, **fields: Any) -> Blocks:
    """Return blocks of format *name* with codes ``[B, block]`` and the other fields."""
    if name == "q6_k":
        return _blocks(name, ql=join(codes & 15, 64, 4), qh=join(codes >> 4, 32, 2), **fields)
    width = 32 if name in ("q4_k", "q5_k") else 16
    if name in ("q5_0", "q5_1", "q5_k"):
        fields["qh"] = join(codes >> 4, 32 if name == "q5_k" else 1, 1)
    return _blocks(name, qs=join(codes & 15, width, 4), **fields)


def _reciprocal(d: Any) -> F32:
    """Return ``1 / d`` ``[..., 1]``, or 0 if it is infinite, so that codes are 0."""
    inverse = np.float32(1) / d
    return np.where(np.isfinite(inverse), inverse, np.float32(0))[..., None]


def _bf16(x: F32) -> Blocks:
    """Round to nearest even; a NaN becomes quiet, with the same upper bits."""
    bits = x[:, 0].view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))
    quiet = bits | np.uint32(0x0040_0000)
    return (np.where(np.isnan(x[:, 0]), quiet, rounded) >> np.uint32(16)).astype(np.uint16)


def _half_away(values: F32) -> F32:
    """Round to integers, halves away from zero."""
    whole = np.trunc(values)
    return np.asarray(whole + np.trunc(2 * (values - whole)))


def _q8_0(x: F32) -> Blocks:
    """Encode with scale amax / 127; codes are values / float32 scale, halves away from zero."""
    d = abs(x).max(axis=-1) / np.float32(127)
    return _blocks("q8_0", d=d, qs=_half_away(x * _reciprocal(d)))


def _centred(x: F32, half: int) -> tuple[F32, U8]:
    """Return the scale and the codes 0..2 * half - 1 of Q4_0 and Q5_0.

    The scale maps the value with the largest magnitude to -half.
    """
    largest = np.take_along_axis(x, abs(x).argmax(axis=-1)[:, None], axis=-1)[:, 0]
    d = largest / np.float32(-half)
    codes = x * _reciprocal(d) + np.float32(half + 0.5)
    return d, np.minimum(codes, 2 * half - 1).astype(np.uint8)


def _minmax(x: F32, top: int) -> tuple[F32, F32, U8]:
    """Return the scale, the minimum and the codes 0..top of Q4_1 and Q5_1."""
    low = x.min(axis=-1)
    d = (x.max(axis=-1) - low) / np.float32(top)
    codes = (x - low[:, None]) * _reciprocal(d) + np.float32(0.5)
    return d, low, np.minimum(codes, top).astype(np.uint8)


def _q4_0(x: F32) -> Blocks:
    d, codes = _centred(x, 8)
    return from_codes("q4_0", codes, d=d)


def _q5_0(x: F32) -> Blocks:
    d, codes = _centred(x, 16)
    return from_codes("q5_0", codes, d=d)


def _q4_1(x: F32) -> Blocks:
    d, m, codes = _minmax(x, 15)
    return from_codes("q4_1", codes, d=d, m=m)


def _q5_1(x: F32) -> Blocks:
    d, m, codes = _minmax(x, 31)
    return from_codes("q5_1", codes, d=d, m=m)


E2M1_MIDPOINTS = (E2M1[:7] + E2M1[1:8]) / np.float32(2)


def _mxfp4(x: F32) -> Blocks:
    """Encode with the power of two that scales the largest magnitude to [8, 16).

    Scaled magnitudes above 12 become 12; ties round to the smaller magnitude.
    Source: OCP Microscaling Formats 1.0, 6.3; ggml.
    """
    amax = abs(x).max(axis=-1)
    exponent = np.frexp(amax)[1] + 124  # 2^(e - 128) * 8 <= amax < 2^(e - 128) * 16
    e = np.where(amax > 0, np.maximum(exponent, 0), 0)
    scaled = np.ldexp(x, 128 - e[:, None])
    magnitude = np.searchsorted(E2M1_MIDPOINTS, abs(scaled), side="left")
    codes = magnitude + 8 * ((scaled < 0) & (magnitude > 0))
    return from_codes("mxfp4", codes.astype(np.uint8), e=e)


# --- npurt's encoders: the smallest scales that clip no value -----------------------------------


def _half_up(values: F64) -> F16:
    """Round values >= 0 up to float16, so that no value is clipped."""
    halves = values.astype(np.float16)
    return np.where(halves < values, np.nextafter(halves, np.float16(np.inf)), halves)


def _ratio(values: Any, steps: Any) -> Any:
    """Return *values* / *steps*, or 0 for steps of 0, whose values are all 0."""
    return np.where(steps == 0, 0, values / steps)


def _steps(wanted: F64, top: int) -> tuple[F16, U8]:
    """Return float16 d and integers n <= top with ``d[b] * n[b, i] >= wanted[b, i] >= 0``.

    n cannot be top + 1 (64 or 128): then a float64 *wanted* would exceed ``top * d`` by at least
    one ulp, and ``wanted / top`` would exceed d by more than half an ulp; but d was rounded up.
    """
    d = _half_up(wanted.max(axis=-1) / top)
    n = np.ceil(_ratio(wanted, d.astype(np.float64)[:, None]))
    return d, n.astype(np.uint8)


IQ4_MIDPOINTS = (IQ4[:-1].astype(np.float32) + IQ4[1:]) / np.float32(2)


def _iq4_nl(x: F32) -> Blocks:
    """Encode with the sign of d that gives the smaller |d|; the codebook is from -127 to 113.

    |error| <= 11.5 * |d|, half the widest gap of the codebook.
    """
    high, low = x.max(axis=-1).astype(np.float64), -x.min(axis=-1).astype(np.float64)
    upright, flipped = np.maximum(low / 127, high / 113), np.maximum(high / 127, low / 113)
    size = _half_up(np.minimum(upright, flipped))
    d = np.where(flipped < upright, -size, size).astype(np.float32)
    codes = np.searchsorted(IQ4_MIDPOINTS, _ratio(x, d[:, None]))
    return from_codes("iq4_nl", codes.astype(np.uint8), d=d)


def _minmax_k(x: F32, top: int) -> tuple[dict[str, Any], U8]:
    """Return the fields of scales and the codes 0..top of Q4_K and Q5_K.

    Sub-blocks have 32 elements; their minima are <= 0.  |error| <= s / 2, where
    s <= (range + dmin) / top + d, range is max(x) - min(x, 0) of the sub-block, and d and dmin are
    1/63 of the block's largest scale and largest magnitude of a minimum.
    """
    sub = x.reshape(-1, 8, 32)
    dmin, mins = _steps(np.maximum(-sub.min(axis=-1).astype(np.float64), 0), 63)
    floors = dmin.astype(np.float32)[:, None] * mins
    d, scales = _steps(np.maximum(sub.max(axis=-1) + floors.astype(np.float64), 0) / top, 63)
    steps = d.astype(np.float32)[:, None] * scales
    codes = np.rint(_ratio(sub + floors[..., None], steps[..., None]))
    return {"d": d, "dmin": dmin, "scales": packed_scales(scales, mins)}, as_codes(codes, x)


def packed_scales(scales: U8, mins: U8) -> U8:
    """Pack 8 scales and 8 minima of 6 bits, the inverse of ``canonical._scales_mins()``.

    The upper two bits of numbers 4 to 7 are in the upper bits of the bytes of numbers 0 to 3.
    """
    first = np.concatenate([scales[:, :4], mins[:, :4]], axis=-1)
    last = np.concatenate([scales[:, 4:], mins[:, 4:]], axis=-1)
    return np.concatenate([first | (last >> 4) << 6, join(last & 15, 4, 4)], axis=-1)


def as_codes(codes: Any, x: F32) -> U8:
    """Return *codes*, one for each value of *x*, in the shape of *x*."""
    return np.asarray(codes.astype(np.uint8).reshape(x.shape))


def _q4_k(x: F32) -> Blocks:
    fields, codes = _minmax_k(x, 15)
    return from_codes("q4_k", codes, **fields)


def _q5_k(x: F32) -> Blocks:
    fields, codes = _minmax_k(x, 31)
    return from_codes("q5_k", codes, **fields)


def _q6_k(x: F32) -> Blocks:
    """Encode sub-blocks of 16 with codes -31..31; |error| <= s / 2, s <= amax / 31 + d."""
    sub = x.reshape(-1, 16, 16)
    d, scales = _steps(abs(sub).max(axis=-1).astype(np.float64) / 31, 127)
    steps = d.astype(np.float32)[:, None] * scales
    codes = np.rint(_ratio(sub, steps[..., None])) + 32
    return from_codes("q6_k", as_codes(codes, x), d=d, scales=scales)


_ENCODERS: dict[str, Callable[[F32], Blocks]] = {
    "f32": lambda x: x[:, 0],
    "f16": lambda x: x[:, 0].astype(np.float16),
    "bf16": _bf16,
    "q8_0": _q8_0,
    "q6_k": _q6_k,
    "q5_k": _q5_k,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q4_k": _q4_k,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "iq4_nl": _iq4_nl,
    "mxfp4": _mxfp4,
}
ENCODABLE = tuple(_ENCODERS)  # names of the formats that `quantize` supports


def encodable(name: Any, *others: str) -> Format:
    """Return the format called *name*.

    Args:
        name: The name of a format in any case, or a Format.
        others: Further names that the caller accepts, which the error's remedy lists.

    Raises:
        UnsupportedOp: npurt cannot quantise to *name*.
    """
    if isinstance(name, Format):
        name = name.name
    if not isinstance(name, str) or name.lower() not in ENCODABLE:
        raise UnsupportedOp(
            f"npurt cannot quantise to {brief(name)}",
            remedy=f"use one of {', '.join((*ENCODABLE, *others))}",
        )
    return find(name)
