"""Unpack and pack GGUF's fields of codes of 1, 2 or 4 bits.

All these fields have the same structure: groups of *width* bytes, with ``8 / bits`` codes per byte.
Byte ``l`` of a group has, from its lowest bits up, the codes of elements ``l``, ``l + width``,
``l + 2 * width``... of the group.
For the nibbles of a 32-element block, (width, bits) is ``(16, 4)``; for the fifth bits of Q5_K it
is ``(32, 1)``.
Source: ggml/src/ggml-quants.c, dequantize_row_*().
"""

from typing import Any

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]


def split(packed: npt.NDArray[Any], width: int, bits: int) -> U8:
    """Unpack uint8 ``[..., B]`` to one code per byte, uint8 ``[..., B * 8 / bits]``.

    B must be a multiple of *width*.  *packed* may be any strided view, such as a block's field.
    """
    planes = 8 // bits
    lead, groups = packed.shape[:-1], packed.shape[-1] // width
    codes = np.empty((*lead, groups, planes, width), np.uint8)
    rest = np.ascontiguousarray(packed).reshape(*lead, groups, width)
    for plane in range(planes):
        codes[..., plane, :] = (rest >> np.uint8(bits * plane)) & np.uint8((1 << bits) - 1)
    return codes.reshape(*lead, groups * planes * width)


def join(codes: npt.NDArray[Any], width: int, bits: int) -> U8:
    """Pack codes below ``2 ** bits``, ``[..., B * 8 / bits]``, to uint8 ``[..., B]``.

    This is the inverse of `split`.  Codes must be in range: larger codes overwrite bits of their
    neighbours.
    """
    planes = 8 // bits
    lead, groups = codes.shape[:-1], codes.shape[-1] // (planes * width)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    shifted = codes.reshape(*lead, groups, planes, width) << shifts
    packed: U8 = np.bitwise_or.reduce(shifted, axis=-2)
    return packed.reshape(*lead, groups * width)
