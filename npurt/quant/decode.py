"""Blocks to float32, exactly as ggml reads them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.quant.blocks import Blocks, require_blocks
from npurt.quant.canonical import F32, canonical
from npurt.quant.types import Format

LARGEST_MXFP4 = 253  # exponent of 2^126: with it, the largest code, 6, exceeds float32
CHUNK = 1 << 18  # elements decoded at a time, so that codes and scales stay small


def dequantize(blocks: Blocks, fmt: Format) -> F32:
    """Expand *blocks* ``[..., K / fmt.block]`` to float32 ``[..., K]``, bit for bit as ggml does.

    NaN stays NaN, but its payload may differ.

    Raises:
        LayoutError: *blocks* is not an array of its dtype.
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
    """Return for each of *blocks* whether a value of it is NaN or infinite.

    Codes are small numbers: a scale or offset that is finite in float16 makes finite values.
    """
    raw: Any = blocks  # its fields are those of the format
    names = [name for name in raw.dtype.names or () if raw.dtype[name].kind == "f"]
    bad = np.zeros(raw.shape, bool)
    if names or raw.dtype.kind == "f":
        for values in [raw[name] for name in names] or [raw]:
            bad |= ~np.isfinite(values)
        return bad
    # Of bfloat16: all bits of the exponent.
    doubtful = raw["e"] >= LARGEST_MXFP4 if fmt.name == "mxfp4" else (raw & 0x7F80) == 0x7F80
    if doubtful.any():
        values = dequantize(blocks[doubtful], fmt).reshape(-1, fmt.block)
        bad[doubtful] = ~np.isfinite(values).all(axis=-1)
    return bad
