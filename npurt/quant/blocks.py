"""The numpy dtype of each GGUF type's blocks."""

from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError
from npurt.quant.types import FORMATS, Format

Blocks = npt.NDArray[np.generic]  # [..., K / block] of a format's dtype


def _dtype(fmt: Format) -> np.dtype[Any]:
    return np.dtype(fmt.layout if isinstance(fmt.layout, str) else list(fmt.layout))


DTYPES = {fmt.name: _dtype(fmt) for fmt in FORMATS}


def require_blocks(blocks: Blocks, fmt: Format) -> None:
    """Raise LayoutError if *blocks* is not an array ``[..., K / fmt.block]`` of *fmt*'s dtype."""
    is_array = isinstance(blocks, np.ndarray)
    dtype = DTYPES[fmt.name]
    if not is_array or blocks.dtype != dtype or blocks.ndim == 0:
        have = f"{blocks.ndim} axes of {blocks.dtype}" if is_array else repr(type(blocks))
        raise LayoutError(
            f"{fmt.name} blocks must be an array [..., K / {fmt.block}] of {dtype}, not {have}",
            remedy="make blocks with QTensor.from_bytes() or quantize()",
        )
