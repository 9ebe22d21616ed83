"""The samplers of npurt's C library, which give the same tokens as those in Python, faster."""

import math

import numpy as np
import numpy.typing as npt

from npurt.base.once import once
from npurt.cpu.kernels import abi
from npurt.device.device import F32
from npurt.errors import DeviceNotFound


@once
def compiled() -> bool:
    """Return whether the C library is built."""
    try:
        abi.lib()
    except DeviceNotFound:
        return False
    return True


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


class Draw:
    """Draws tokens from logits with fixed settings.

    Args:
        never: Ids that are never drawn, in ascending order.
        top_k: The number of largest logits to keep; 0 keeps all.
        top_p: The sum of probabilities to keep; 1 keeps all.
        min_p: The minimum probability relative to the largest one; 0 keeps all.
        temperature: Above 0.
    """

    def __init__(
        self, never: npt.NDArray[np.int64], *,
        top_k: int, top_p: float, min_p: float, temperature: float,
    ) -> None:  # fmt: skip
        self._ffi = abi.ffi()
        self._sample = abi.lib().npurt_sample
        bounds = zip([0, *(never + 1).tolist()], [*never.tolist(), math.inf], strict=True)
        ranges = [(first, end) for first, end in bounds if first < end]
        ranges[-1] = (ranges[-1][0], 0)  # each call sets its end
        self._allowed = self._ffi.new("npurt_range[]", ranges)
        self._last = self._allowed[len(ranges) - 1]
        self._settings = self._ffi.new(
            "npurt_sampling *",
            {
                "allowed": self._allowed,
                "allowed_count": len(ranges),
                "top_k": top_k,
                "top_p": top_p,
                "log_min_p": math.log(min_p) if min_p else -math.inf,
                "temperature": temperature,
                "isa": abi.isa(),
            },
        )

    def __call__(self, logits: F32, random: float) -> int | None:
        """Draw a token from *logits* ``[V]`` with *random*, a random number in [0, 1).

        Return None if numpy must draw the token, or report an error in the logits.
        """
        row = self._ffi.from_buffer("float[]", np.ascontiguousarray(logits))
        self._last.end = len(row)
        token = int(self._sample(self._settings, row, len(row), random))
        return token if token >= 0 else None
