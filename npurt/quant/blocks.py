"""Arrays of blocks: the numpy dtype of each GGUF type."""

from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError
from npurt.quant.types import FORMATS, Format

Blocks = npt.NDArray[np.generic]  # shape [..., K / block] of a format's dtype


def _dtype(fmt: Format) -> np.dtype[Any]:
    return np.dtype(fmt.layout if isinstance(fmt.layout, str) else list(fmt.layout))


DTYPES = {fmt.name: _dtype(fmt) for fmt in FORMATS}


def require_blocks(blocks: Blocks, fmt: Format) -> None:
    """Raise LayoutError unless *blocks* is an array ``[..., K / fmt.block]`` of its dtype."""
    is_array = isinstance(blocks, np.ndarray)
    dtype = DTYPES[fmt.name]
    if not is_array or blocks.dtype != dtype or blocks.ndim == 0:
        have = f"one of {blocks.ndim} axes and {blocks.dtype}" if is_array else repr(type(blocks))
        raise LayoutError(
            f"{fmt.name} blocks are an array [..., K / {fmt.block}] of {dtype}, not {have}",
            remedy="make blocks with QTensor.from_bytes() or quantize()",
        )
