"""GGUF tensor types: number, name and block layout.

One row per type; the numpy dtype of a block is its specification.  `canonical` has the meaning of
the blocks.
Source: ggml/include/ggml.h (type numbers), ggml/src/ggml-common.h (block structs), MIT.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, UnsupportedOp, brief


@dataclass(frozen=True, slots=True)
class Format:
    """How one GGUF type lies in a file: *block* elements in one item of *dtype*."""

    name: str  # lower case, as users write it: "q4_k"
    number: int  # ggml type number
    block: int  # elements per block
    dtype: np.dtype[np.void] | np.dtype[np.generic]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.dtype.itemsize

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of *k* elements; *k* must be a multiple of `block`."""
        return k // self.block * self.block_bytes


def _block(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype[np.void]:
    return np.dtype(list(fields))


# d: scale; dmin: scale of the minima; qs: low bits; qh/hmask: high bits; little endian.
FORMATS = (
    #       name     number block  dtype
    Format("f32",        0,   1, np.dtype("<f4")),
    Format("f16",        1,   1, np.dtype("<f2")),
    Format("q4_0",       2,  32, _block(("d", "<f2"), ("qs", "u1", 16))),
    Format("q4_1",       3,  32, _block(("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16))),
    Format("q5_0",       6,  32, _block(("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16))),
    Format("q5_1",       7,  32, _block(("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4),
                                        ("qs", "u1", 16))),
    Format("q8_0",       8,  32, _block(("d", "<f2"), ("qs", "i1", 32))),
    Format("q2_k",      10, 256, _block(("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"),
                                        ("dmin", "<f2"))),
    Format("q3_k",      11, 256, _block(("hmask", "u1", 32), ("qs", "u1", 64),
                                        ("scales", "u1", 12), ("d", "<f2"))),
    Format("q4_k",      12, 256, _block(("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12),
                                        ("qs", "u1", 128))),
    Format("q5_k",      13, 256, _block(("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12),
                                        ("qh", "u1", 32), ("qs", "u1", 128))),
    Format("q6_k",      14, 256, _block(("ql", "u1", 128), ("qh", "u1", 64),
                                        ("scales", "i1", 16), ("d", "<f2"))),
    Format("iq4_nl",    20,  32, _block(("d", "<f2"), ("qs", "u1", 16))),
    Format("iq4_xs",    23, 256, _block(("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4),
                                        ("qs", "u1", 128))),
    Format("bf16",      30,   1, np.dtype("<u2")),
    Format("mxfp4",     39,  32, _block(("e", "u1"), ("qs", "u1", 16))),
)  # fmt: skip

FLOATS = ("f32", "f16", "bf16")  # formats of plain numbers
BY_NAME = {f.name: f for f in FORMATS}
BY_NUMBER = {f.number: f for f in FORMATS}

Blocks = npt.NDArray[np.generic]  # shape [..., K / block] of a format's dtype


def find(fmt: Format | str) -> Format:
    """Return the format of that name, in any case; a Format is returned as it is.

    Raises:
        UnsupportedOp: There is no such name.
    """
    if isinstance(fmt, Format):
        return fmt
    found = BY_NAME.get(fmt.lower()) if isinstance(fmt, str) else None
    if found is None:
        raise UnsupportedOp(
            f"there is no format {brief(fmt)}", remedy=f"use one of {', '.join(BY_NAME)}"
        )
    return found


def require_blocks(blocks: Blocks, fmt: Format) -> None:
    """Raise LayoutError unless *blocks* is an array ``[..., K / fmt.block]`` of ``fmt.dtype``."""
    is_array = isinstance(blocks, np.ndarray)
    if not is_array or blocks.dtype != fmt.dtype or blocks.ndim == 0:
        have = f"one of {blocks.ndim} axes and {blocks.dtype}" if is_array else repr(type(blocks))
        raise LayoutError(
            f"{fmt.name} blocks are an array [..., K / {fmt.block}] of {fmt.dtype}, not {have}",
            remedy="make blocks with QTensor.from_bytes() or quantize()",
        )
