"""The host's own work around a product: `npurt_rk.h`, parsed, and the library, opened late."""

import functools
import re
from pathlib import Path
from typing import Any

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
    if bad:
        raise NumericsError(
            f"row {bad - 1} holds NaN or infinity, or values too large to add up",
            remedy="look for the op before this one that overflowed or divided by zero",
        )


def rescale(sums: I32, scales: F32, w: F32, y: F32, *, passes: int, add: bool = False) -> None:
    """Write (or add) ``sums * scales[:, None] * w`` to y ``[M, N]``, as `npurt_rk_rescale` says.

    Args:
        sums: int32 ``[passes * M, columns]`` in C order; the first N columns count.
        scales: float32 ``[M]``, of the activations.
        w: float32 ``[N]``, of the weights.
        y: float32; columns contiguous.
        passes: As in `round_rows`.
        add: Add to y instead.
    """
    m, n = y.shape
    lib().npurt_rk_rescale(
        _at("int32_t *", sums), m, n, sums.shape[1], passes, _at("float *", scales),
        _at("float *", w), _at("float *", y), y.strides[0] // 4, int(add),
    )  # fmt: skip
