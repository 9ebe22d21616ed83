"""The host's own work around a product: `npurt_rk.h`, parsed, and the library, opened late."""

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from cffi import FFI

from npurt.device import F32
from npurt.errors import DeviceNotFound, NumericsError

HEADER = Path(__file__).with_name("npurt_rk.h")
LIBRARY = Path(__file__).with_name("libnpurt_rk.so")

I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]


@functools.cache
def ffi() -> Any:
    """Parse the header once, on first use."""
    text = re.sub(r"^\s*#.*$", "", HEADER.read_text(), flags=re.M).replace("NPURT_API ", "")
    parser = FFI()
    parser.cdef(text)
    return parser


@functools.cache
def lib() -> Any:
    """The library, opened on first use.

    Raises:
        DeviceNotFound: It is missing, or cannot be loaded.
    """
    try:
        return ffi().dlopen(str(LIBRARY))
    except OSError as error:
        raise DeviceNotFound(
            f"cannot load the RK3588 backend's library: {error}",
            remedy="reinstall npurt; in a checkout run `pip install -e .`, which compiles it",
        ) from error


def _at(kind: str, array: npt.NDArray[Any]) -> Any:
    return ffi().cast(kind, array.ctypes.data)


def round_rows(
    x: F32, codes: I8, scales: F32, *, signs: I8 | None, block: int, passes: int
) -> None:
    """Rotate and round the rows of x ``[M, K]`` as `npurt_rk_round` says.

    Args:
        x: float32; columns contiguous.
        codes: To be written, int8 ``[passes * M, Kp]`` in C order.
        scales: To be written, float32 ``[M]``.
        signs: int8 ``[Kp]`` of 1 and -1, or None.
        block: Columns of a rotation, a power of two; 1 for none.
        passes: 1, or 2 for 16 bits.

    Raises:
        NumericsError: A row holds NaN or infinity.
    """
    m, k = x.shape
    kp = codes.shape[1]
    scratch = np.empty(kp, np.float32)
    bad = lib().npurt_rk_round(
        _at("float *", x), x.strides[0] // 4, m, k, kp,
        ffi().NULL if signs is None else _at("int8_t *", signs), block, passes,
        _at("int8_t *", codes), _at("float *", scales), _at("float *", scratch),
    )  # fmt: skip
    _require_finite(bad)


def _require_finite(bad: int, first: int = 0) -> None:
    if bad:
        raise NumericsError(
            f"row {first + bad - 1} holds NaN or infinity, or values too large to add up",
            remedy="look for the op before this one that overflowed or divided by zero",
        )


class Target(NamedTuple):
    """Where some columns of x go once they are rounded; see `npurt_rk_part`."""

    columns: slice
    block: int
    signs: I8 | None
    codes: I8  # [passes * M, Kp]
    scales: F32  # [M]


class Writer:
    """Rounds x into places that stay the same.

    Args:
        targets: Where the parts of K go.
        passes: As in `round_rows`.
    """

    def __init__(self, targets: Sequence[Target], passes: int) -> None:
        self._owned = targets
        self._passes = passes
        self._scratch = np.empty(max(t.codes.shape[1] for t in targets), np.float32)
        self._parts = ffi().new("npurt_rk_part[]", [
            {
                "signs": ffi().NULL if t.signs is None else _at("int8_t *", t.signs),
                "codes": _at("int8_t *", t.codes),
                "scales": _at("float *", t.scales),
                "first": t.columns.start,
                "k": t.columns.stop - t.columns.start,
                "kp": t.codes.shape[1],
                "block": t.block,
            }
            for t in targets
        ])  # fmt: skip
        self._room = _at("float *", self._scratch)
        self._write = lib().npurt_rk_write
        self._address = ffi().from_buffer

    def write(self, x: F32, first: int = 0) -> None:
        """Round x ``[M, K]``, float32 in C order, whose rows errors count from *first*.

        Raises:
            NumericsError: A row holds NaN or infinity.
        """
        m, k = x.shape
        address = self._address("float[]", x)
        bad = self._write(
            self._parts, len(self._parts), address, k, m, self._passes, self._room
        )  # fmt: skip
        if bad:
            _require_finite(bad, first)


class Rectangle(NamedTuple):
    """What one core wrote for some columns of one weight; see `npurt_rk_block`."""

    sums: npt.NDArray[Any]  # [slices, passes * M, columns], int32 or float32
    scales: F32  # [M], of x
    w: F32  # [N], of the weight's columns: N of them count
    y: int  # which result
    first: int  # its column
    add: bool


class Reader:
    """Gives sums their scales, from places that stay the same.

    Args:
        rectangles: What to read, all of one type.
        rows: M.
        passes: As in `round_rows`.
        results: How many y there are.
    """

    def __init__(
        self, rectangles: Sequence[Rectangle], rows: int, passes: int, results: int
    ) -> None:
        self._owned = rectangles
        self._rows, self._passes = rows, passes
        self._floats = int(rectangles[0].sums.dtype == np.float32)
        self._blocks = ffi().new("npurt_rk_block[]", [
            {
                "sums": ffi().cast("void *", r.sums.ctypes.data),
                "w": _at("float *", r.w),
                "scales": _at("float *", r.scales),
                "slice": r.sums.strides[0] // 4,
                "slices": len(r.sums),
                "columns": r.sums.shape[2],
                "n": len(r.w),
                "y": r.y,
                "first": r.first,
                "add": int(r.add),
            }
            for r in rectangles
        ])  # fmt: skip
        self._y = ffi().new("float *[]", results)
        self._pitch = ffi().new("int64_t[]", results)
        self._read = lib().npurt_rk_read
        self._address = ffi().from_buffer

    def read(self, outs: Sequence[F32]) -> None:
        """Write y ``[M, N]`` of each weight, float32 in C order."""
        held = [self._address("float[]", out) for out in outs]
        for i, pointer in enumerate(held):
            self._y[i] = pointer
            self._pitch[i] = outs[i].shape[1]
        self._read(
            self._blocks, len(self._blocks), self._rows, self._passes, self._floats, self._y,
            self._pitch,
        )  # fmt: skip
