"""The table of GGUF tensor types: number, name and layout of a block.

`blocks` has the numpy dtypes of the types, and `canonical` unpacks their blocks.
Source: ggml/include/ggml.h (type numbers), ggml/src/ggml-common.h (block structs), MIT.
"""

import math
from dataclasses import dataclass
from typing import Any

from npurt.errors import UnsupportedOp, brief


@dataclass(frozen=True, slots=True)
class Format:
    """One GGUF type: *block* elements are stored in *block_bytes* bytes."""

    name: str  # lower case, such as "q4_k"
    number: int  # ggml type number
    block: int  # elements per block
    block_bytes: int
    layout: str | tuple[tuple[Any, ...], ...]  # numpy dtype of an element, or fields of a block

    def row_bytes(self, k: int) -> int:
        """Return the bytes of a row of *k* elements; *k* must be a multiple of `block`."""
        return k // self.block * self.block_bytes


def _blocks(name: str, number: int, block: int, *fields: tuple[Any, ...]) -> Format:
    """Return the format whose blocks have *fields*: (name, dtype) or (name, dtype, length)."""
    nbytes = sum(int(kind[-1]) * math.prod(length) for _, kind, *length in fields)
    return Format(name, number, block, nbytes, fields)


# d: scale; dmin: scale of the minima; qs: low bits; qh/hmask: high bits; little endian.
FORMATS = (
    #         name    number block  fields, or bytes and numpy dtype
    Format( "f32",        0,   1, 4, "<f4"),
    Format( "f16",        1,   1, 2, "<f2"),
    _blocks("q4_0",       2,  32, ("d", "<f2"), ("qs", "u1", 16)),
    _blocks("q4_1",       3,  32, ("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)),
    _blocks("q5_0",       6,  32, ("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)),
    _blocks("q5_1",       7,  32, ("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4),
                                   ("qs", "u1", 16)),
    _blocks("q8_0",       8,  32, ("d", "<f2"), ("qs", "i1", 32)),
    _blocks("q2_k",      10, 256, ("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"),
                                   ("dmin", "<f2")),
    _blocks("q3_k",      11, 256, ("hmask", "u1", 32), ("qs", "u1", 64),
                                   ("scales", "u1", 12), ("d", "<f2")),
    _blocks("q4_k",      12, 256, ("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12),
                                   ("qs", "u1", 128)),
    _blocks("q5_k",      13, 256, ("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12),
                                   ("qh", "u1", 32), ("qs", "u1", 128)),
    _blocks("q6_k",      14, 256, ("ql", "u1", 128), ("qh", "u1", 64),
                                   ("scales", "i1", 16), ("d", "<f2")),
    _blocks("iq4_nl",    20,  32, ("d", "<f2"), ("qs", "u1", 16)),
    _blocks("iq4_xs",    23, 256, ("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4),
                                   ("qs", "u1", 128)),
    Format( "bf16",      30,   1, 2, "<u2"),
    _blocks("mxfp4",     39,  32, ("e", "u1"), ("qs", "u1", 16)),
)  # fmt: skip

FLOATS = ("f32", "f16", "bf16")  # formats of plain numbers
BY_NAME = {f.name: f for f in FORMATS}
BY_NUMBER = {f.number: f for f in FORMATS}


def find(fmt: Format | str) -> Format:
    """Return the format called *fmt*, in any case; a Format is returned unchanged.

    Raises:
        UnsupportedOp: The name is unknown.
    """
    if isinstance(fmt, Format):
        return fmt
    found = BY_NAME.get(fmt.lower()) if isinstance(fmt, str) else None
    if found is None:
        raise UnsupportedOp(
            f"unknown format {brief(fmt)}", remedy=f"use one of {', '.join(BY_NAME)}"
        )
    return found
