"""Convert blocks to a canonical form: integer codes with float32 scales.

``value = scale * code + offset``, with one scale (and offset) per *group* of codes along K; a w4
code is an index into the codebook.  The conversion does not round:

- codes are copied from the file;
- a scale is a float16 times an integer of at most 8 bits, or a power of two (MXFP4): at most 11 + 8
  bits of mantissa and at least 2^-24, so exact in float32; the same holds for offsets;
- scale * code needs at most 23 bits (Q6_K: 11 + 7 + 5; IQ4_XS: 11 + 5 + 7), so it is exact, too,
  in any order of multiplication, with or without a fused multiply-add (MXFP4 can overflow to
  infinity).

The only rounding is that of adding the offset, as in ggml.  So the values are equal to ggml's bit
for bit, for every type.  The error against real arithmetic is at most half an ulp of the value for
types with an offset (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K), and zero for the others.
Source: ggml/src/ggml-quants.c, dequantize_row_*(); ggml/src/ggml-common.h, kvalues_*.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from npurt.quant.blocks import Blocks, require_blocks
from npurt.quant.planes import U8, split
from npurt.quant.types import Format

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I8 = npt.NDArray[np.int8]
Form = Literal["w4", "w8", "f16"]


@dataclass(frozen=True, slots=True, eq=False)
class Canonical:
    """A tensor as ``scale * code + offset``.  In the shapes below, N stands for all axes before K.

    Attributes:
        form: ``w4``, ``w8`` or ``f16``.
        codes: ``[N, K]``.  w4: uint8, 0..15, an index into *codebook*.  w8: int8.
            f16: the values in float16 or float32 (bfloat16 is converted to float32).
        codebook: int8 ``[16]`` for w4, else None.
        scales: float32 ``[N, K / group]``.
        offsets: float32 ``[N, K / group]``, or None for formats without offsets.
        group: The number of codes per scale, 32 or 16; 1 for f16, whose scales are all 1.
    """

    form: Form
    codes: npt.NDArray[Any]
    codebook: I8 | None
    scales: F32
    offsets: F32 | None
    group: int

    @np.errstate(over="ignore", invalid="ignore")  # infinite scales make inf and NaN, as in ggml
    def dequantize(self) -> F32:
        """Return the values, float32 of the shape of `codes`, equal to ggml's bit for bit."""
        if self.form == "f16":
            return self.codes.astype(np.float32)
        integers = self.codes if self.codebook is None else self.codebook[self.codes]
        values: F32 = integers.reshape(*self.scales.shape, self.group) * self.scales[..., None]
        if self.offsets is not None:
            values += self.offsets[..., None]
        return values.reshape(self.codes.shape)

    @np.errstate(invalid="ignore")
    def exact(self) -> F64:
        """Return the exact values in float64, where adding an offset does not round."""
        if self.form == "f16":
            return self.codes.astype(np.float64)
        integers = self.codes if self.codebook is None else self.codebook[self.codes]
        scales = self.scales[..., None].astype(np.float64)
        values: F64 = integers.reshape(*self.scales.shape, self.group) * scales
        if self.offsets is not None:
            values += self.offsets[..., None]
        return values.reshape(self.codes.shape)

    def sizes(self) -> F64:
        """Return ``|scale * code| + |offset|``, which bounds the rounding error of products."""
        values = self.exact()
        if self.offsets is None:
            return abs(values)
        offsets = np.repeat(self.offsets.astype(np.float64), self.group, axis=-1)
        sizes: F64 = abs(values - offsets) + abs(offsets)
        return sizes


class _Parts(NamedTuple):
    """The unpacked contents of blocks ``[..., B]``."""

    codes: U8 | I8  # [..., B, block]
    scales: F32  # [..., B, block / group]
    offsets: F32 | None = None


def canonical(blocks: Blocks, fmt: Format) -> Canonical:
    """Return the canonical form of *blocks*, shape ``[..., K / fmt.block]`` of its dtype.

    Raises:
        LayoutError: *blocks* is not an array of the format's dtype.
    """
    require_blocks(blocks, fmt)
    if fmt.block == 1:
        values = _bf16(blocks) if fmt.name == "bf16" else blocks
        ones = np.broadcast_to(np.float32(1), blocks.shape)
        return Canonical("f16", values, None, ones, None, group=1)
    form, codebook, unpack = _LAYOUTS[fmt.name]
    with np.errstate(invalid="ignore"):  # an infinite d times a zero sub-scale is NaN, as in ggml
        parts = unpack(blocks)
    group = fmt.block // parts.scales.shape[-1]
    codes, scales, offsets = map(_rows, parts)
    return Canonical(form, codes, codebook, scales, offsets, group)


def _rows(part: Any) -> Any:
    """Merge the last two axes: ``[..., B, n]`` -> ``[..., B * n]``."""
    if part is None:
        return None
    *lead, count, inner = part.shape
    return part.reshape(*lead, count * inner)


# --- One unpacker per layout; the fields are those of `types.FORMATS` ---------------------------


def _bf16(words: Any) -> F32:
    """Return bfloat16 words as float32."""
    widened: F32 = (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return widened


def _wide(field: Any) -> F32:
    """Return a float16 field ``[..., B]`` as float32 ``[..., B, 1]``."""
    widened: F32 = field.astype(np.float32)[..., None]
    return widened


def _signed(codes: U8, bias: int) -> I8:
    """Return codes - bias as int8; both are below 128, so int8 does not wrap."""
    return codes.view(np.int8) - np.int8(bias)


def _nibbles(b: Any) -> _Parts:
    """Unpack Q4_0 and IQ4_NL."""
    return _Parts(split(b["qs"], 16, 4), _wide(b["d"]))


def _q4_1(b: Any) -> _Parts:
    return _Parts(split(b["qs"], 16, 4), _wide(b["d"]), _wide(b["m"]))


def _five_bits(b: Any) -> U8:
    """Return codes 0..31 of Q5_0 and Q5_1; bit e of the 32-bit qh is the fifth bit of element e."""
    return split(b["qs"], 16, 4) | split(b["qh"], 1, 1) << np.uint8(4)


def _q5_0(b: Any) -> _Parts:
    return _Parts(_signed(_five_bits(b), 16), _wide(b["d"]))


def _q5_1(b: Any) -> _Parts:
    return _Parts(_five_bits(b).view(np.int8), _wide(b["d"]), _wide(b["m"]))


def _q8_0(b: Any) -> _Parts:
    return _Parts(np.ascontiguousarray(b["qs"]), _wide(b["d"]))


def _mxfp4(b: Any) -> _Parts:
    exponents = b["e"].astype(np.int32)[..., None] - 128  # not 127: the codebook is doubled
    return _Parts(split(b["qs"], 16, 4), np.ldexp(np.float32(1), exponents))


def _q2_k(b: Any) -> _Parts:
    scales, mins = b["scales"] & np.uint8(15), b["scales"] >> np.uint8(4)
    codes = split(b["qs"], 32, 2).view(np.int8)
    return _Parts(codes, _wide(b["d"]) * scales, -(_wide(b["dmin"]) * mins))


def _q3_k(b: Any) -> _Parts:
    low, high = split(b["scales"][..., :8], 8, 4), split(b["scales"][..., 8:], 4, 2)
    codes = split(b["qs"], 32, 2) | split(b["hmask"], 32, 1) << np.uint8(2)
    return _Parts(_signed(codes, 4), _wide(b["d"]) * _signed(low | high << np.uint8(4), 32))


def _scales_mins(b: Any) -> tuple[F32, F32]:
    """Return the scales and offsets of the 8 sub-blocks of Q4_K and Q5_K.

    Bytes 0-3 have scales 0-3 in their low six bits, and the high two bits of scales 4-7 above.
    Bytes 4-7 have the minima in the same way.  Bytes 8-11 have the low four bits of scales 4-7 in
    their low nibbles, and of minima 4-7 in their high nibbles.
    """
    first, last = b["scales"][..., :8], split(b["scales"][..., 8:], 4, 4)
    packed = np.stack([first & np.uint8(63), last | (first >> np.uint8(6)) << np.uint8(4)], -2)
    scales, mins = packed[..., :4], packed[..., 4:]
    flat = (*first.shape[:-1], 8)
    return _wide(b["d"]) * scales.reshape(flat), -(_wide(b["dmin"]) * mins.reshape(flat))


def _q4_k(b: Any) -> _Parts:
    return _Parts(split(b["qs"], 32, 4), *_scales_mins(b))


def _q5_k(b: Any) -> _Parts:
    codes = split(b["qs"], 32, 4) | split(b["qh"], 32, 1) << np.uint8(4)
    return _Parts(codes.view(np.int8), *_scales_mins(b))


def _q6_k(b: Any) -> _Parts:
    codes = split(b["ql"], 64, 4) | split(b["qh"], 32, 2) << np.uint8(4)
    return _Parts(_signed(codes, 32), _wide(b["d"]) * b["scales"])


def _iq4_xs(b: Any) -> _Parts:
    high = b["scales_h"][..., None] >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    scales = split(b["scales_l"], 1, 4) | high.astype(np.uint8) << np.uint8(4)
    return _Parts(split(b["qs"], 16, 4), _wide(b["d"]) * _signed(scales, 32))


def _codebook(*values: int) -> I8:
    codebook = np.array(values, np.int8)
    codebook.flags.writeable = False
    return codebook


UNSIGNED = _codebook(*range(16))
CENTRED = _codebook(*range(-8, 8))
IQ4 = _codebook(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = _codebook(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # doubled

_LAYOUTS: dict[str, tuple[Form, I8 | None, Callable[[Any], _Parts]]] = {
    "q4_0": ("w4", CENTRED, _nibbles),
    "q4_1": ("w4", UNSIGNED, _q4_1),
    "q5_0": ("w8", None, _q5_0),
    "q5_1": ("w8", None, _q5_1),
    "q8_0": ("w8", None, _q8_0),
    "q2_k": ("w8", None, _q2_k),
    "q3_k": ("w8", None, _q3_k),
    "q4_k": ("w4", UNSIGNED, _q4_k),
    "q5_k": ("w8", None, _q5_k),
    "q6_k": ("w8", None, _q6_k),
    "iq4_nl": ("w4", IQ4, _nibbles),
    "iq4_xs": ("w4", IQ4, _iq4_xs),
    "mxfp4": ("w4", E2M1, _mxfp4),
}
