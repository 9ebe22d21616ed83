"""Keys and values as attention reads them: see attend__vec.c.

Letters: G kv heads, P positions (a multiple of 16), W head width.  Keys lie as
``[G, P / 16, W, 16]``, sixteen positions side by side, values as ``[G, P, W]``.  Memory is taken
from the system as positions are first used.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu.engine import empty
from npurt.device import F32

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


def shift(
    keys: Array, values: Array, cos: F32, sin: F32, *, halves: bool, keep: int, drop: int, end: int
) -> None:
    """Move positions ``[keep + drop, end)`` down by *drop*, over those that are forgotten.

    The moved keys are rotated back by *drop* positions: row *drop* of the tables cos and sin
    ``[positions, rotated / 2]``, over the factor that both have (row 0 of cos).

    Args:
        halves: Pairs of elements are (i, i + rotated / 2), not (2i, 2i + 1).
    """
    pairs = cos.shape[1]
    c, s = cos[drop] / cos[0], sin[drop] / cos[0]
    kv_heads, panels, width, _ = keys.shape
    rows = keys.transpose(0, 1, 3, 2).reshape(kv_heads, panels * PANEL, width)
    moved = rows[:, keep + drop : end].astype(np.float32)
    a = moved[..., :pairs] if halves else moved[..., 0 : 2 * pairs : 2]
    b = moved[..., pairs : 2 * pairs] if halves else moved[..., 1 : 2 * pairs : 2]
    a[:], b[:] = a * c + b * s, b * c - a * s
    rows = rows.copy()
    rows[:, keep : end - drop] = moved
    keys[:] = rows.reshape(kv_heads, panels, PANEL, width).transpose(0, 1, 3, 2)
    values[:, keep : end - drop] = values[:, keep + drop : end].copy()
