"""Read, write and shift keys and values in the layout that attend__vec.c reads.

Keys and values are in pages of 64 positions; the pages of a sequence need not be adjacent.
Letters: G kv heads, N pages, P positions per page, W head width.  Keys are ``[G, N, P / 16, W,
16]``, sixteen positions side by side; values are ``[G, N, P, W]``.  So pages with consecutive
numbers are contiguous memory.  A page's memory is committed on first access.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu.kernels import abi
from npurt.cpu.pool.engine import empty
from npurt.device.device import F32

Array = npt.NDArray[Any]
PageNumbers = npt.NDArray[np.int32]
PANEL = 16  # positions per panel of keys


def allocate(pages: int, kv_heads: int, width: int, dtype: npt.DTypeLike) -> tuple[Array, Array]:
    """Return zeroed arrays of keys and values with *pages* pages."""
    size = abi.limits().page
    keys = empty(pages * kv_heads * size, width, dtype)
    values = empty(pages * kv_heads * size, width, dtype)
    return (
        keys.reshape(kv_heads, pages, size // PANEL, width, PANEL),
        values.reshape(kv_heads, pages, size, width),
    )


def page_bytes(kv_heads: int, width: int, dtype: npt.DTypeLike) -> int:
    """Return the bytes of one page: its keys and its values."""
    return 2 * kv_heads * abi.limits().page * width * np.dtype(dtype).itemsize


def copy_page(keys: Array, values: Array, source: int, target: int, count: int) -> None:
    """Copy the first *count* positions of page *source* to page *target*."""
    panels = -(-count // PANEL)
    keys[:, target, :panels] = keys[:, source, :panels]
    values[:, target, :count] = values[:, source, :count]


def read_keys(keys: Array, pages: PageNumbers, length: int) -> Array:
    """Return a copy of the first *length* keys of a sequence with *pages*, ``[G, length, W]``."""
    kv_heads, _, panels, width, _ = keys.shape
    used = keys[:, _used(pages, length, panels * PANEL)].transpose(0, 1, 2, 4, 3)
    return used.reshape(kv_heads, -1, width)[:, :length]


def read_values(values: Array, pages: PageNumbers, length: int) -> Array:
    """Return a copy of the first *length* values, as `read_keys` does."""
    kv_heads, _, size, width = values.shape
    used = values[:, _used(pages, length, size)]
    return used.reshape(kv_heads, -1, width)[:, :length]


def write_keys(keys: Array, pages: PageNumbers, given: Array) -> None:
    """Write the keys *given* ``[G, length, W]`` to *pages*, from position 0 of the first page."""
    kv_heads, _, panels, width, _ = keys.shape
    used = _used(pages, given.shape[1], panels * PANEL)
    lines = np.zeros((kv_heads, len(used), panels, PANEL, width), keys.dtype)
    lines.reshape(kv_heads, -1, width)[:, : given.shape[1]] = given
    keys[:, used] = lines.transpose(0, 1, 2, 4, 3)


def write_values(values: Array, pages: PageNumbers, given: Array) -> None:
    """Write the values *given* ``[G, length, W]`` to *pages*, from position 0 of the first page."""
    kv_heads, _, size, width = values.shape
    used = _used(pages, given.shape[1], size)
    lines = np.zeros((kv_heads, len(used), size, width), values.dtype)
    lines.reshape(kv_heads, -1, width)[:, : given.shape[1]] = given
    values[:, used] = lines


def shift(
    keys: Array, values: Array, pages: PageNumbers, cos: F32, sin: F32, *, halves: bool,
    keep: int, drop: int, end: int,
) -> None:  # fmt: skip
    """Move positions ``[keep + drop, end)`` down by *drop*, over the removed positions.

    The moved keys are rotated back by *drop* positions, with the angles in row *drop* of *cos* and
    *sin*.

    Args:
        cos: ``[positions, rotated / 2]``; row 0 is the magnitude that scales both tables.
        sin: The same shape.
        halves: True rotates the pairs (i, i + rotated / 2); False the pairs (2i, 2i + 1).
    """
    pairs = cos.shape[1]
    c, s = cos[drop] / cos[0], sin[drop] / cos[0]
    first = keep // values.shape[2]  # index of the first page that changes
    start = first * values.shape[2]
    rows = read_keys(keys, pages, end)
    moved = rows[:, keep + drop :].astype(np.float32)
    a = moved[..., :pairs] if halves else moved[..., 0 : 2 * pairs : 2]
    b = moved[..., pairs : 2 * pairs] if halves else moved[..., 1 : 2 * pairs : 2]
    a[:], b[:] = a * c + b * s, b * c - a * s
    rows[:, keep : end - drop] = moved
    write_keys(keys, pages[first:], rows[:, start : end - drop])
    lines = read_values(values, pages, end)
    lines[:, keep : end - drop] = lines[:, keep + drop :].copy()
    write_values(values, pages[first:], lines[:, start : end - drop])


def _used(pages: PageNumbers, length: int, size: int) -> PageNumbers:
    """Return the pages of the first *length* positions."""
    return pages[: -(-length // size)]
