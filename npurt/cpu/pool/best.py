"""Find the largest numbers of a row in C, in one pass at memory bandwidth."""

import numpy as np
import numpy.typing as npt

from npurt.cpu.kernels import abi
from npurt.device.device import F32


def best(row: F32, k: int) -> npt.NDArray[np.int64]:
    """Return the indices of the *k* largest numbers of *row*, largest first.

    Equal numbers are in order of their indices.  NaN and -inf are left out, so there may be fewer
    than *k* indices.
    """
    ffi = abi.ffi()
    row = np.ascontiguousarray(row)
    found = np.empty(min(k, len(row)), np.int32)
    count = abi.lib().npurt_best(
        ffi.from_buffer("float[]", row), len(row), len(found), ffi.from_buffer("int32_t[]", found)
    )
    return found[:count].astype(np.int64)
