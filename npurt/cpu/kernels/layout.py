"""Unpack weight images in numpy, the inverse of pack__vec.c; read the table in formats.inc.

This module does not load the C library.  Tests compare the C kernels with `unpack`.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TABLE = Path(__file__).with_name("formats.inc")

ROWS = 16  # rows of a panel
BLOCK = 32  # columns of a block
RECORD = 256  # columns of a record


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """One row of formats.inc, which documents the columns."""

    name: str
    number: int
    bits: int
    book: int
    shift: int
    group: int
    scale: str
    offset: int


@functools.cache
def table() -> dict[int, ImageFormat]:
    """Return the rows of formats.inc by GGUF type number."""
    rows = re.findall(r"^NPURT_FORMAT\((.*)\)$", TABLE.read_text(), flags=re.M)
    formats = []
    for row in rows:
        name, number, bits, book, shift, group, scale, offset = (c.strip() for c in row.split(","))
        formats.append(
            ImageFormat(
                name, int(number), int(bits), int(book), int(shift), int(group), scale, int(offset)
            )
        )
    return {f.number: f for f in formats}


def group(number: int) -> int:
    """Return the number of columns per block scale of GGUF type *number*; 1 for float types."""
    return table()[number].group if number in table() else 1


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The contents of an image: value = scale * (code or codebook entry) + offset."""

    codes: npt.NDArray[np.uint8]  # [N, K], stored as code + 2^shift, or as codebook index
    scales: npt.NDArray[np.float32]  # [N, K / group]
    offsets: npt.NDArray[np.float32] | None


def unpack(image: npt.NDArray[np.uint8], number: int, n: int, k: int) -> Unpacked:
    """Return the contents of an image of an integer type; layout.h describes the format."""
    f = table()[number]
    panels = -(-n // ROWS)
    codes = np.empty((panels * ROWS, k), np.uint8)
    scales = np.empty((panels * ROWS, k // f.group), np.float32)
    offsets = np.empty_like(scales)
    panel_bytes = image.size // panels
    for panel in range(panels):
        rows = slice(panel * ROWS, (panel + 1) * ROWS)
        data = image[panel * panel_bytes : (panel + 1) * panel_bytes]
        at = 0
        for first in range(0, k, RECORD):
            blocks = min(RECORD, k - first) // BLOCK
            here = slice(first // f.group, (first + blocks * BLOCK) // f.group)
            scales[rows, here], offsets[rows, here], used = _scales(f, data[at:], blocks)
            at += used
            size = blocks * (512 if f.bits == 8 else 256 + 64 * (f.bits - 4))
            part = data[at : at + size].reshape(blocks, -1)
            codes[rows, first : first + blocks * BLOCK] = _codes(f, part)
            at += size
    return Unpacked(codes[:n], scales[:n], offsets[:n] if f.offset else None)


def _scales(
    f: ImageFormat, data: npt.NDArray[np.uint8], blocks: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], int]:
    """Return the scales and offsets ``[16, groups]`` of one record, and their size in bytes."""
    groups = blocks * BLOCK // f.group
    size = groups * ROWS
    if f.scale == "FLAT":
        held = 1 + f.offset
        both = data[: 2 * size * held].view("<f2").astype(np.float32).reshape(held, groups, ROWS)
        return both[0].T, both[-1].T, 2 * size * held
    if f.scale == "EXP":
        power = np.ldexp(np.float32(1), data[:size].astype(np.int32) - 128)
        return power.reshape(groups, ROWS).T, np.zeros((ROWS, groups), np.float32), size
    start = 64 if f.offset else 32
    tops = data[:start].view("<f2").astype(np.float32).reshape(-1, ROWS)
    subs = data[start : start + size * len(tops)].view(np.int8).astype(np.float32)
    both = subs.reshape(len(tops), groups, ROWS) * tops[:, None, :]
    return both[0].T, -both[-1].T, start + size * len(tops)


def _codes(f: ImageFormat, part: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return ``[16, blocks * 32]`` codes of one record's code area ``[blocks, bytes]``."""
    blocks = len(part)
    quads: npt.NDArray[Any]
    if f.bits == 8:
        quads = part.reshape(blocks, 8, ROWS, 4)
    else:
        low = part[:, :256].reshape(blocks, 4, ROWS, 4)
        quads = np.concatenate([low & 15, low >> 4], axis=1)
    if f.bits == 5:
        high = part[:, 256:].reshape(blocks, 1, ROWS, 4)
        quads = quads | (high >> np.arange(8, dtype=np.uint8)[:, None, None] & 1) << 4
    if f.bits == 6:
        high = part[:, 256:].reshape(blocks, 2, 1, ROWS, 4)
        pairs = high >> (2 * np.arange(4, dtype=np.uint8))[:, None, None] & 3
        quads = quads | pairs.reshape(blocks, 8, ROWS, 4) << 4
    return np.asarray(quads.transpose(2, 0, 1, 3).reshape(ROWS, blocks * BLOCK))
