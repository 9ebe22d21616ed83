"""Blocks to float32, exactly as ggml reads them."""

import numpy as np

from npurt.quant.canonical import F32, canonical
from npurt.quant.types import Blocks, Format, require_blocks

CHUNK = 1 << 18  # elements decoded at a time, so that codes and scales stay small


def dequantize(blocks: Blocks, fmt: Format) -> F32:
    """Expand *blocks* ``[..., K / fmt.block]`` to float32 ``[..., K]``, bit for bit as ggml does.

    NaN stays NaN, but its payload may differ.

    Raises:
        LayoutError: *blocks* is not an array of ``fmt.dtype``.
    """
    require_blocks(blocks, fmt)
    *lead, count = blocks.shape
    flat = blocks.reshape(-1)
    values = np.empty((flat.size, fmt.block), np.float32)
    step = CHUNK // fmt.block
    for start in range(0, flat.size, step):
        chunk = canonical(flat[start : start + step], fmt)
        values[start : start + step] = chunk.dequantize().reshape(-1, fmt.block)
    return values.reshape(*lead, count * fmt.block)
