"""Open the C library of this package, with the declarations of `npurt_rk.h`; call its functions."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.base import library
from npurt.base.once import once
from npurt.device.device import F32
from npurt.errors import NumericsError
from npurt.quant import activations

HEADER = Path(__file__).with_name("npurt_rk.h")
LIBRARY = "rknpu/driver/libnpurt_rk.so"

I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]


@once
def ffi() -> Any:
    """Parse the header once, on first use."""
    return library.declare(HEADER)


@once
def lib() -> Any:
    """Return the library, opened on first use.

    Raises:
        DeviceNotFound: The library is missing, or cannot be loaded.
    """
    return library.load(ffi(), library.path_of(LIBRARY), "the RK3588 backend's functions")


def at(kind: str, array: npt.NDArray[Any]) -> Any:
    """Return the address of an array; the address does not keep the array alive."""
    return ffi().cast(kind, array.ctypes.data)


def round_rows(
    x: F32, codes: I8, scales: F32, *, signs: I8 | None, block: int, passes: int
) -> None:
    """Rotate and round the rows of x ``[M, K]``; see `npurt_rk_round`.

    Args:
        x: float32; columns contiguous.
        codes: Output, int8 ``[passes * M, Kp]`` in C order.
        scales: Output, float32 ``[M]``.
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
        at("float *", x), x.strides[0] // 4, m, k, kp,
        ffi().NULL if signs is None else at("int8_t *", signs), block, passes,
        at("int8_t *", codes), at("float *", scales), at("float *", scratch),
    )  # fmt: skip
    if bad:
        raise not_finite(bad - 1)


def not_finite(row: int) -> NumericsError:
    """Return the error for a row that `npurt_rk_round` refuses."""
    return activations.not_finite(f"row {row} holds NaN or infinity, or is too large to add up")
