"""Pack weights into the images that the Hexagon kernels read, and unpack images, in numpy.

An image is an array of tiles of 32 rows.  A tile has heads and then, for each step of 64 columns,
vectors of codes, scales and offsets; dsp/kernels/product.h and the kernels' files define their
layout.  Zeros pad rows to whole tiles and columns to a multiple of 64.  This module needs neither a
device nor a compiled library.

Codes are those of the model file; float tensors become 16-bit codes (see `_float_part`).  A scale
or offset becomes an integer of at most `Kernel.bits` bits times a power of two.  The power of two
is common to a row:

    scale = integer * 2^exponent * (1 + e)      |e| <= 1 / (2 |integer|)

The largest integer of a row has `bits` bits (13 to 15), so its relative error is below 2^-bits.
Smaller scales have larger relative errors, in inverse proportion.  The rounding changes the values
of a block with codes c, as a vector, by at most 2^(exponent - 1) |c|.  If the scales of a row
differ by a few powers of two, the relative error is small (2^-14).  If rounding changes a row, as a
vector, by more than 2^-10 of its norm, `pack` refuses the weight.  This limit is a quarter of the
error of 8-bit activations (2^-8), so it adds at most 1/16 to the squared error of a row.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, NumericsError, UnsupportedOp
from npurt.hexagon.fastrpc.rpcmem import ALIGN
from npurt.hexagon.layout import formats
from npurt.hexagon.layout.formats import ImageFormat
from npurt.quant.tensor import QTensor

TILE = 32  # rows
STEP = 64  # columns
VECTOR = ALIGN  # bytes
BIAS = 156  # added to a row's exponent in a head (dsp/kernels/epilogue.h)
EXPONENTS = range(-250, 91)  # of rows; sums with the exponents of x do not overflow
MAX_ERROR = 2.0**-10  # maximum relative error of a row from rounding its scales

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]


def format_of(tensor: QTensor) -> ImageFormat:
    """Return the image format of *tensor*.

    Raises:
        UnsupportedOp: No kernel supports its format.
    """
    found = formats.BY_NAME.get(tensor.format.name)
    if found is None:
        raise UnsupportedOp(
            f"there is no Hexagon kernel for {tensor.format.name}", remedy="use device 'cpu'"
        )
    return found


def steps(k: int) -> int:
    """Return the number of steps of 64 columns that hold *k* columns."""
    return -(-k // STEP)


def tile_bytes(fmt: ImageFormat, k: int) -> int:
    """Return the size of a tile in bytes, a multiple of 128."""
    return (fmt.heads + steps(k) * fmt.vectors) * VECTOR


def image_bytes(fmt: ImageFormat, n: int, k: int) -> int:
    """Return the size in bytes of the image of a weight ``[n, k]``."""
    return -(-n // TILE) * tile_bytes(fmt, k)


# --- pack ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a weight as integers, before they are written to an image; R is a multiple of 32."""

    codes: npt.NDArray[Any]  # [R, K'] unsigned, as the kernel reads them; K' a multiple of 64
    scales: I32  # [R, K' / group]
    offsets: I32 | None  # [R, K' / group]
    exponents: I32  # [R]
    used: npt.NDArray[np.bool_]  # [R]; False: the row is zero
    book: I8 | None = None  # [16], the codebook of the format


def pack(tensor: QTensor, out: U8 | None = None) -> U8:
    """Return the image of a 2-D *tensor* ``[N, K]``, written to *out* if given.

    Raises:
        UnsupportedOp: No kernel supports the format, or rounding the scales changes a row too much.
        LayoutError: *tensor* is not 2-D, or the size of *out* is not `image_bytes`.
        NumericsError: A scale or value is not finite.
    """
    fmt = format_of(tensor)
    if tensor.ndim != 2 or tensor.transposed:
        raise LayoutError(f"{tensor!r} is not a weight (N, K)", remedy="pass w, not w.T, in 2-D")
    n, k = tensor.shape
    tiles = _tiles(fmt, n, k, out)
    for rows in _slices(n, k):
        part = _float_part(fmt, tensor, rows) if fmt.kernel == "q16" else _part(fmt, tensor, rows)
        _write(fmt, part, tiles[rows.start // TILE : -(-rows.stop // TILE)])
    return tiles.reshape(-1)


def pack_i8(codes: npt.NDArray[np.int8], scales: F32, out: U8 | None = None) -> U8:
    """Return the image of int8 *codes* ``[N, K]`` with one scale per row, in the format ``i8``.

    Scales are rounded to 15 bits, a relative error below 2^-15.

    Raises:
        LayoutError: A shape or type is wrong; K must be a multiple of 32.
        NumericsError: A scale is not finite.
    """
    fmt = formats.BY_NAME["i8"]
    n, k = codes.shape if codes.ndim == 2 else (0, 0)
    if codes.dtype != np.int8 or not n or not k or k % 32 or scales.shape != (n,):
        raise LayoutError(
            f"i8 weights are int8 [N, K] with K a multiple of 32, and N scales; not {codes.dtype} "
            f"{codes.shape} and {scales.shape}",
            remedy="pad K with zeros",
        )
    tiles = _tiles(fmt, n, k, out)
    for rows in _slices(n, k):
        stored = _stored(fmt, _padded(codes[rows]))
        part = _rounded(fmt, stored, scales[rows, None].astype(np.float64), None, None, rows)
        _write(fmt, part, tiles[rows.start // TILE : -(-rows.stop // TILE)])
    return tiles.reshape(-1)


def _tiles(fmt: ImageFormat, n: int, k: int, out: U8 | None) -> U8:
    """Return *out*, or a new array, as ``[tiles, bytes of a tile]``."""
    nbytes = image_bytes(fmt, n, k)
    image = np.empty(nbytes, np.uint8) if out is None else out
    if image.dtype != np.uint8 or image.shape != (nbytes,) or not image.flags.c_contiguous:
        raise LayoutError(
            f"the image of {fmt.name} [{n}, {k}] takes {nbytes} bytes, not {image.nbytes}",
            remedy="allocate image_bytes() bytes",
        )
    return image.reshape(-1, tile_bytes(fmt, k))


def _slices(n: int, k: int) -> Iterator[slice]:
    """Return slices of the *n* rows, short enough for their codes to stay in the cache."""
    rows = max(1, (1 << 20) // max(k, 1) // TILE) * TILE
    return (slice(start, min(start + rows, n)) for start in range(0, n, rows))


def _padded_rows(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Add rows of zeros to fill the last tile."""
    missing = -len(array) % TILE
    return np.pad(array, ((0, missing), (0, 0))) if missing else array


def _padded(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Add rows and columns of zeros to fill the last tile and the last step."""
    codes = _padded_rows(codes)
    missing = -codes.shape[1] % STEP
    return np.pad(codes, ((0, 0), (0, missing))) if missing else codes


def _part(fmt: ImageFormat, tensor: QTensor, rows: slice) -> _Part:
    """Return *rows* of *tensor* as integers, with the codes of the file."""
    canonical = tensor[rows].canonical()
    kind = fmt.kind
    scales = canonical.scales.astype(np.float64)
    offsets = None
    if canonical.offsets is not None:
        offsets = (canonical.offsets + scales * fmt.centre) / kind.sums
    codes = _stored(fmt, _padded(canonical.codes))
    return _rounded(fmt, codes, scales * (kind.unit / fmt.gain), offsets, canonical.codebook, rows)


def _rounded(
    fmt: ImageFormat,
    codes: npt.NDArray[Any],
    scales: npt.NDArray[Any],
    offsets: F64 | None,
    book: I8 | None,
    rows: slice,
) -> _Part:
    """Return a part with *scales* and *offsets* rounded to integers times powers of two."""
    both = scales if offsets is None else np.concatenate([scales, offsets], axis=1)
    exponents, used = _exponents(fmt, abs(both).max(axis=1), rows)
    integers = np.rint(np.ldexp(both, -exponents[:, None])).astype(np.int32)
    count = scales.shape[1]
    part = _Part(
        codes,
        _padded_rows(integers[:, :count]),
        None if offsets is None else _padded_rows(integers[:, count:]),
        _padded_rows(exponents[:, None])[:, 0],
        _padded_rows(used[:, None])[:, 0],
        book,
    )
    if count > 1:
        _require_close(fmt, part, np.ldexp(scales, -exponents[:, None]), rows)
    return part


def _exponents(fmt: ImageFormat, largest: F64, rows: slice) -> tuple[I32, npt.NDArray[np.bool_]]:
    """Return the exponents of rows, and which rows are not zero.

    The exponent of a row scales its *largest* value to an integer of `Kernel.bits` bits.
    """
    if not np.isfinite(largest).all():
        row = rows.start + int(np.argmin(np.isfinite(largest)))
        raise NumericsError(
            f"row {row} of the weight holds NaN or infinity",
            remedy="the file is damaged: download it again, or convert the model again",
        )
    bits = fmt.kind.bits
    exponents = np.frexp(largest)[1].astype(np.int32) - np.int32(bits)
    exponents += np.rint(np.ldexp(largest, -exponents)) >= 1 << bits
    used = largest > 0
    exponents[~used] = 0
    if used.any() and (exponents.min() < EXPONENTS[0] or exponents.max() > EXPONENTS[-1]):
        raise UnsupportedOp(
            f"scales of the weight are as large as {largest.max():.3g}, too large for the DSP",
            remedy="run this weight on device 'cpu'",
        )
    return exponents, used


def _stored(fmt: ImageFormat, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return codes as the kernel reads them; 4-bit codes need no change."""
    return codes if fmt.codes == 8 else _stored_bytes(fmt, codes.view(np.uint8))


def _stored_bytes(fmt: ImageFormat, codes: U8) -> U8:
    """Return 8-bit codes minus the centre, times the gain, plus the zero point, modulo 2^8."""
    if fmt.gain != 1:
        codes = codes * np.uint8(fmt.gain)
    return codes + np.uint8((fmt.kind.zero_point - fmt.centre * fmt.gain) % 256)


def _require_close(fmt: ImageFormat, part: _Part, exact: F64, rows: slice) -> None:
    """Raise UnsupportedOp if the rounding of scales changes a row by more than `MAX_ERROR`.

    Args:
        fmt: The format of the image.
        part: The rows, with rounded scales.
        exact: The scales before they were rounded, in units of their row's power of two.
        rows: The position of *part* in the weight.
    """
    integers = part.scales[: len(exact)]
    loose = abs(integers - exact) > MAX_ERROR * abs(exact)
    suspects = np.flatnonzero(loose.any(axis=1))
    if not suspects.size:
        return
    blocks = _signed(fmt, part.codes[suspects], part.book).astype(np.float32)
    blocks = blocks.reshape(len(suspects), -1, fmt.kind.group)
    squares = np.einsum("rbc,rbc->rb", blocks, blocks)[:, : exact.shape[1]].astype(np.float64)
    lost = ((integers[suspects] - exact[suspects]) ** 2 * squares).sum(axis=1)
    whole = (exact[suspects] ** 2 * squares).sum(axis=1)
    worst = int(np.argmax(lost - whole * MAX_ERROR**2))
    if lost[worst] > whole[worst] * MAX_ERROR**2:
        error = math.sqrt(lost[worst] / whole[worst])
        raise UnsupportedOp(
            f"the scales of row {rows.start + int(suspects[worst])} differ too much: rounding them "
            f"for the DSP would change the row by {error:.1%}",
            remedy="run this weight on device 'cpu'",
        )


def _signed(fmt: ImageFormat, stored: npt.NDArray[Any], book: I8 | None) -> I32:
    """Return stored codes as the signed integers that the kernel multiplies."""
    if book is None or fmt.kernel != "lut":
        return stored.astype(np.int32) - np.int32(fmt.kind.zero_point)
    values: I32 = (book.astype(np.int32) * np.int32(fmt.gain))[stored]
    return values


def _float_part(fmt: ImageFormat, tensor: QTensor, rows: slice) -> _Part:
    """Return *rows* of a float *tensor* in block fixed point: 16-bit codes, a scale per 32 columns.

    Scales are rounded up before codes are computed, so no code exceeds 32767.  The error of a value
    is at most half a scale: 2^-16 of the largest value in its block, plus 2^-31 of the largest
    value in its row.
    """
    values = _padded(tensor[rows].dequantize().astype(np.float64))
    blocks = values.reshape(len(values), -1, 32)
    scales = abs(blocks).max(axis=2) * (fmt.kind.unit / 32767)
    exponents, used = _exponents(fmt, scales.max(axis=1) * (1 + 2**-15), rows)
    integers = np.ceil(np.ldexp(scales, -exponents[:, None]))
    unit = np.ldexp(np.where(integers, integers, 1) / fmt.kind.unit, exponents[:, None])
    codes = np.rint(blocks / unit[..., None]).astype(np.int32) + 32768
    return _Part(
        codes.astype(np.uint16).reshape(values.shape),
        integers.astype(np.int32),
        None,
        exponents,
        used,
    )


def _write(fmt: ImageFormat, part: _Part, tiles: U8) -> None:
    """Write the tiles of *part*."""
    count = len(tiles)
    heads = tiles[:, : fmt.heads * VECTOR].reshape(count, fmt.heads, VECTOR)
    body = tiles[:, fmt.heads * VECTOR :].reshape(count, -1, fmt.vectors, VECTOR)
    _write_heads(fmt, part, heads)
    first = 0
    for quads in _quads(fmt, part.codes):
        words = quads.reshape(count, TILE, body.shape[1], -1).transpose(0, 2, 3, 1)
        body[:, :, first : first + words.shape[2]].view(np.uint32)[:] = words
        first += words.shape[2]
    for integers in (part.scales, part.offsets):
        if integers is not None and fmt.scales:
            pairs = _pairs(fmt, integers, body.shape[1])
            body[:, :, first : first + fmt.scales].view(np.int16)[:] = pairs
            first += fmt.scales


def _write_heads(fmt: ImageFormat, part: _Part, heads: U8) -> None:
    heads[:] = 0
    exponents = part.exponents.reshape(len(heads), TILE)
    used = part.used.reshape(len(heads), TILE)
    heads[:, 0].view(np.uint32)[:] = (exponents + BIAS << 23).astype(np.uint32)
    limits = heads[:, 1].view(np.int32)
    limits[:, 0] = np.where(used, exponents, 1 << 30).min(axis=1)
    limits[:, 1] = np.where(used, exponents, -(1 << 30)).max(axis=1)
    limits[~used.any(axis=1)] = 0
    if fmt.kernel == "lut":
        assert part.book is not None, "formats of this kernel have a codebook"
        table = _stored_bytes(fmt, part.book.view(np.uint8))
        heads[:, 2, 0:32:2] = heads[:, 2, 32:64:2] = table
    if fmt.kernel == "per_channel":
        heads[:, 2].view(np.uint32)[:] = part.scales.reshape(len(heads), TILE) << 16


def _quads(fmt: ImageFormat, codes: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.uint32]]:
    """Yield the planes of codes, each as words of four bytes ``[R, words]``.

    16-bit codes have a plane of high bytes and a plane of low bytes.  A byte holds two 4-bit codes.
    """
    if fmt.kernel == "q16":
        yield (codes >> np.uint16(8)).astype(np.uint8).view(np.uint32)
        yield codes.astype(np.uint8).view(np.uint32)
    elif fmt.codes == 8:
        words = np.ascontiguousarray(codes).view(np.uint32)
        yield words[:, ::2] | words[:, 1::2] << np.uint32(4)
    else:
        yield np.ascontiguousarray(codes).view(np.uint32)


def _pairs(fmt: ImageFormat, integers: I32, count: int) -> npt.NDArray[np.int16]:
    """Return integers ``[R, groups]`` as ``[tiles, steps, vectors, 64]``.

    Two adjacent integers are those of a row in the first and the second half of a step.
    """
    padded = np.zeros((len(integers), count * 2 * fmt.scales), np.int16)
    padded[:, : integers.shape[1]] = integers
    split = padded.reshape(-1, TILE, count, 2, fmt.scales)
    return split.transpose(0, 2, 4, 1, 3).reshape(-1, count, fmt.scales, 2 * TILE)


# --- unpack -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnpackedIntegers:
    """The integers of an image: value = unit * (scale * code / kind.unit + kind.sums * offset).

    Attributes:
        codes: int32 ``[N, K]``, as the kernel multiplies them: ``(code in the file - centre) *
            gain``; for formats with a table, the entries of the table.
        scales: int32 ``[N, K / group]``; ``[N, 1]`` for i8.
        offsets: int32 ``[N, K / group]`` or None.
        exponents: int32 ``[N]``: unit = 2 ** exponent.
    """

    codes: I32
    scales: I32
    offsets: I32 | None
    exponents: I32


def unpack(
    image: U8, fmt: ImageFormat, n: int, k: int, rows: slice = slice(None)
) -> UnpackedIntegers:
    """Return the integers of *rows* from *image*, the image of a weight ``[n, k]``."""
    start, stop, _ = rows.indices(n)
    tiles = image.reshape(-1, tile_bytes(fmt, k))[start // TILE : -(-stop // TILE)]
    keep = slice(start % TILE, start % TILE + stop - start)
    heads = tiles[:, : fmt.heads * VECTOR].reshape(len(tiles), fmt.heads, VECTOR)
    body = tiles[:, fmt.heads * VECTOR :].reshape(len(tiles), steps(k), fmt.vectors, VECTOR)
    exponents = (heads[:, 0].view(np.int32).reshape(-1) >> 23) - BIAS
    group = fmt.kind.group or k
    if fmt.kernel == "per_channel":
        scales = (heads[:, 2].view(np.int32) >> 16).reshape(-1, 1)
    else:
        scales = _unpaired(fmt, body[:, :, fmt.codes : fmt.codes + fmt.scales])
    offsets = _unpaired(fmt, body[:, :, fmt.codes + fmt.scales :]) if fmt.offsets else None
    return UnpackedIntegers(
        _unpacked_codes(fmt, heads, body)[keep, :k],
        scales[keep, : k // group],
        None if offsets is None else offsets[keep, : k // group],
        exponents[keep],
    )


def _unpaired(fmt: ImageFormat, vectors: U8) -> I32:
    """Invert `_pairs`: return int32 ``[R, groups]``."""
    count, step_count = vectors.shape[:2]
    pairs = np.ascontiguousarray(vectors).view(np.int16)
    split = pairs.reshape(count, step_count, fmt.scales, TILE, 2).transpose(0, 3, 1, 4, 2)
    return split.reshape(count * TILE, -1).astype(np.int32)


def _unpacked_codes(fmt: ImageFormat, heads: U8, body: U8) -> I32:
    """Return the codes of whole tiles, ``[R, K']``."""
    count, step_count = body.shape[:2]
    lanes = body[:, :, : fmt.codes].reshape(count, step_count, fmt.codes, TILE, 4)
    rows = lanes.transpose(0, 3, 1, 2, 4).reshape(count * TILE, step_count, fmt.codes, 4)
    stored: npt.NDArray[Any] = rows
    if fmt.codes == 8:
        stored = np.stack([rows & 15, rows >> 4], axis=3)
    if fmt.kernel == "q16":
        planes = rows.reshape(count * TILE, step_count, 2, STEP)
        stored = planes[:, :, 0].astype(np.int32) * 256 + planes[:, :, 1]
    stored = stored.reshape(count * TILE, -1)
    if fmt.kernel != "lut":
        return stored.astype(np.int32) - fmt.kind.zero_point
    tables = heads[:, 2, 0:32:2].astype(np.int32) - fmt.kind.zero_point
    return np.take_along_axis(np.repeat(tables, TILE, axis=0), stored.astype(np.int64), axis=1)


def multiplied(image: U8, fmt: ImageFormat, n: int, k: int, rows: slice = slice(None)) -> F64:
    """Return the exact weights ``[rows, k]`` that the DSP multiplies by for *rows* of the image."""
    return values(unpack(image, fmt, n, k, rows), fmt)


def values(part: UnpackedIntegers, fmt: ImageFormat) -> F64:
    """Return the exact weights ``[N, K]`` that the integers of *part* stand for."""
    kind = fmt.kind
    k = part.codes.shape[1]
    group = kind.group or k
    exact = part.codes.reshape(len(part.codes), -1, group) * part.scales[..., None].astype(float)
    exact /= kind.unit
    if part.offsets is not None:
        exact += part.offsets[..., None] * float(kind.sums)
    scaled: F64 = np.ldexp(exact, part.exponents[:, None, None])
    return scaled.reshape(-1, k)
