"""Convert features, weights and results to their memory layouts, and back.  Pure numpy.

The product is C [M, N] = A [M, K] @ B [N, K].T.  The rows of A (features) and C (results) are
divided into atoms of 16 bytes.  Every layout interleaves the atoms of *p* rows:
``[M/p, atoms, p, 16]``.  ROW has p = 1, which is row-major; NATIVE has p = M; panels have p = 8 or
16.  Sources: mtx512/rk3588-npu feature_data(), weight_int8(), weight_fp16();
happyme531/rknpu2_matmul_open (panels); gregordinary/rocket-userspace weight_int4(), weight_tf32().
"""

from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError
from npurt.rknpu.isa.formats import ATOM, INT4, NumberFormat

Bytes = npt.NDArray[np.uint8]

_ELEMENT: dict[int, np.dtype[Any]] = {  # bits of an element -> dtype
    8: np.dtype(np.int8),
    16: np.dtype("<f2"),
    32: np.dtype("<f4"),
}


class Layout(Enum):
    """Memory layouts of A and C, with the order in which the NPU reads and writes them."""

    ROW = "row"
    NATIVE_W = "native-w"  # A is an image of M x 1 pixels (width x height)
    NATIVE_H = "native-h"  # same memory layout; A is an image of 1 x M pixels
    PANEL8 = "panel8"
    PANEL16 = "panel16"

    @property
    def panel_rows(self) -> int:
        """The number of rows must be a multiple of this."""
        return {Layout.PANEL8: 8, Layout.PANEL16: 16}.get(self, 1)

    def panel(self, m: int) -> int:
        """Return p, the number of interleaved rows, for a matrix of *m* rows.

        Raises:
            LayoutError: *m* is not a multiple of p.
        """
        native = self in (Layout.NATIVE_W, Layout.NATIVE_H)
        rows = max(m, 1) if native else self.panel_rows
        if m < 1 or m % rows:
            raise LayoutError(
                f"{m} rows do not divide into panels of {rows}",
                remedy=f"pad to {max(1, -(-m // rows)) * rows} rows",
            )
        return rows


def pad(x: npt.NDArray[Any], rows: int, columns: int) -> npt.NDArray[Any]:
    """Return *x* padded with zeros to ``[rows, columns]``."""
    padded = np.zeros((rows, columns), x.dtype)
    padded[: x.shape[0], : x.shape[1]] = x
    return padded


def to_bytes(x: npt.NDArray[Any], format: NumberFormat) -> Bytes:
    """Return the elements of ``[R, K]`` as bytes ``[R, K * bits / 8]``.

    Args:
        x: int8 for int8 and int4 (codes -8 to 7), float16, or float32 for tf32.

    Raises:
        LayoutError: *x* has another dtype, or a code does not fit in 4 bits.
    """
    want = np.dtype(_ELEMENT[max(8, format.bits)])
    if x.dtype != want:
        raise LayoutError(
            f"{format.name} takes {want}, not {x.dtype}", remedy=f"convert with .astype('{want}')"
        )
    if format.code != INT4:
        return np.asarray(np.ascontiguousarray(x).view(np.uint8))
    if x.shape[1] % 2 or (x.size and (x.min() < -8 or x.max() > 7)):
        raise LayoutError(
            f"{x.shape[1]} codes from {x.min()} to {x.max()} cannot be packed as pairs of 4 bits",
            remedy="quantise to -8 .. 7 and pad K to a multiple of 32",
        )
    nibbles = np.ascontiguousarray(x).view(np.uint8) & 15
    low, high = nibbles[:, ::2], nibbles[:, 1::2]
    return np.asarray(low | high << 4, np.uint8)


def from_bytes(data: Bytes, format: NumberFormat) -> npt.NDArray[Any]:
    """Return the elements of bytes ``[R, B]``, the inverse of `to_bytes`."""
    data = np.ascontiguousarray(data)
    if format.code != INT4:
        return np.asarray(data.view(_ELEMENT[format.bits]))
    pairs = np.stack([data << 4, data & 0xF0], axis=-1).view(np.int8)
    return np.asarray((pairs >> 4).reshape(len(data), -1))


def arrange(rows: Bytes, layout: Layout) -> Bytes:
    """Lay out the bytes ``[M, B]`` of M rows; return ``[M/p, B/16, p, 16]``.

    Raises:
        LayoutError: B is not a multiple of 16, or M not a multiple of p.
    """
    m, row_bytes = rows.shape
    p = layout.panel(m)
    if row_bytes % ATOM:
        raise LayoutError(
            f"rows of {row_bytes} bytes are not whole atoms of {ATOM}",
            remedy="pad K or N with zeros: `pad`",
        )
    atoms = rows.reshape(m // p, p, row_bytes // ATOM, ATOM)
    return np.ascontiguousarray(atoms.transpose(0, 2, 1, 3))


def restore(image: Bytes, layout: Layout, m: int) -> Bytes:
    """Return the bytes ``[M, B]`` of *m* rows, the inverse of `arrange`; *image* has any shape."""
    p = layout.panel(m)
    atoms = image.reshape(m // p, -1, p, ATOM)
    return np.ascontiguousarray(atoms.transpose(0, 2, 1, 3)).reshape(m, -1)


def pack_weights(b: npt.NDArray[Any], format: NumberFormat) -> Bytes:
    """Reorder B for the weight DMA; a tile of 1024 bytes is the input of one MAC array step.

    Args:
        b: ``[N, K]`` with a dtype of `to_bytes`; N is a multiple of the group, K of the step.

    Returns:
        The bytes ``[N/group, K/step, group, bytes of a step]``.

    Raises:
        LayoutError: N is not a multiple of the group, or K not a multiple of the step.
    """
    n, k = b.shape
    if n % format.group or k % format.k_step:
        raise LayoutError(
            f"weights [N={n}, K={k}] do not divide into tiles of {format.group} x {format.k_step}",
            remedy=f"pad N to {-(-n // format.group) * format.group} "
            f"and K to {-(-k // format.k_step) * format.k_step} with zeros",
        )
    data = to_bytes(b, format).reshape(n // format.group, format.group, k // format.k_step, -1)
    return np.ascontiguousarray(data.transpose(0, 2, 1, 3))


def unpack_weights(packed: Bytes, format: NumberFormat) -> npt.NDArray[Any]:
    """Return B ``[N, K]``, the inverse of `pack_weights`."""
    groups, steps, group, step_bytes = packed.shape
    rows = packed.transpose(0, 2, 1, 3).reshape(groups * group, steps * step_bytes)
    return from_bytes(rows, format)
