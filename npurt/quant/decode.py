"""Dequantise blocks to float32, with the same results as ggml."""

from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.quant.blocks import Blocks, require_blocks
from npurt.quant.canonical import F32, canonical
from npurt.quant.types import Format

LARGEST_MXFP4 = 253  # the smallest MXFP4 exponent, 2^126, whose product with 6 overflows float32
CHUNK = 1 << 18  # elements decoded at a time, so that codes and scales stay small


def dequantize(blocks: Blocks, fmt: Format) -> F32:
    """Return the values of *blocks* ``[..., K / fmt.block]`` as float32 ``[..., K]``.

    Values are equal to ggml's bit for bit, except that payloads of NaN may differ.

    Raises:
        LayoutError: *blocks* is not an array of the format's dtype.
    """
    if blocks.size * fmt.block <= CHUNK:
        return canonical(blocks, fmt).dequantize()
    require_blocks(blocks, fmt)
    *lead, count = blocks.shape
    flat = blocks.reshape(-1)
    values = np.empty((flat.size, fmt.block), np.float32)
    step = CHUNK // fmt.block
    for start in range(0, flat.size, step):
        chunk = canonical(flat[start : start + step], fmt)
        values[start : start + step] = chunk.dequantize().reshape(-1, fmt.block)
    return values.reshape(*lead, count * fmt.block)


def not_finite(blocks: Blocks, fmt: Format) -> npt.NDArray[np.bool_]:
    """Return, for each of *blocks*, whether one of its values is NaN or infinite.

    Codes are small integers, so values are finite if the float16 scales and offsets are.
    """
    raw: Any = blocks  # a structured array with the fields of the format
    names = [name for name in raw.dtype.names or () if raw.dtype[name].kind == "f"]
    bad = np.zeros(raw.shape, bool)
    if names or raw.dtype.kind == "f":
        for values in [raw[name] for name in names] or [raw]:
            bad |= ~np.isfinite(values)
        return bad
    # A bfloat16 is NaN or infinite if all bits of its exponent are set.
    doubtful = raw["e"] >= LARGEST_MXFP4 if fmt.name == "mxfp4" else (raw & 0x7F80) == 0x7F80
    if doubtful.any():
        values = dequantize(blocks[doubtful], fmt).reshape(-1, fmt.block)
        bad[doubtful] = ~np.isfinite(values).all(axis=-1)
    return bad
