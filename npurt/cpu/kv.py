"""Keys and values as attention reads them: see attend__vec.c.

Letters: G kv heads, P positions (a multiple of 16), W head width.  Keys lie as
``[G, P / 16, W, 16]``, sixteen positions side by side, values as ``[G, P, W]``.  Memory is taken
from the system as positions are first used.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu.engine import empty

Array = npt.NDArray[Any]
PANEL = 16  # positions


def allocate(
    kv_heads: int, positions: int, width: int, dtype: npt.DTypeLike
) -> tuple[Array, Array]:
    """Return keys and values for so many positions, or a few more."""
    panels = -(-positions // PANEL)
    keys = empty(kv_heads * panels * PANEL, width, dtype)
    values = empty(kv_heads * panels * PANEL, width, dtype)
    return (
        keys.reshape(kv_heads, panels, width, PANEL),
        values.reshape(kv_heads, panels * PANEL, width),
    )


def read_keys(keys: Array, length: int) -> Array:
    """Return a copy of the first *length* keys, ``[G, length, W]``."""
    used = keys[:, : -(-length // PANEL)].transpose(0, 1, 3, 2)
    kv_heads, panels, _, width = used.shape
    return used.reshape(kv_heads, panels * PANEL, width)[:, :length].copy()


def write_keys(keys: Array, given: Array) -> None:
    """Let the first keys be *given*, ``[G, length, W]``."""
    kv_heads, length, width = given.shape
    lines = np.zeros((kv_heads, -(-length // PANEL), PANEL, width), keys.dtype)
    lines.reshape(kv_heads, -1, width)[:, :length] = given
    keys[:, : lines.shape[1]] = lines.transpose(0, 1, 3, 2)
