"""Weights of an NPU in the memory of the host, multiplied with the bits of the NPU.

Integer sums are exact, so the bits are those of every RK3588.  Sums of float16 products are those
of the simulator; the NPU's order of additions is not published.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32, F64
from npurt.device.host_products import HostDevice, HostPacked
from npurt.rknpu.device.quantise import REMAINDER_STEPS, RoundedColumns, float16_scales
from npurt.rknpu.device.weights import RkPacked, RoundedPacked, inputs_of
from npurt.rknpu.driver.native.host import at, lib, round_rows

Array = npt.NDArray[Any]


class RkHostPacked(RoundedPacked, HostPacked):
    """The weight *packed* of an NPU, in the memory of the host."""

    def __init__(self, device: HostDevice, packed: RkPacked) -> None:
        self.device, self.tensor, self.scheme = device, packed.tensor, packed.scheme
        quantised = packed.quantised()
        self.inputs = inputs_of(quantised)
        self._parts = [_OnHost(part, self.scheme.passes) for part in quantised.parts]
        for part, slices in zip(self._parts, packed.slices, strict=False):
            part.split([interval.start for interval in slices])

    @property
    def nbytes(self) -> int:
        """Bytes of the codes."""
        return sum(part.codes.nbytes for part in self._parts)

    def prepare(self, x: F32) -> Callable[[F32, int, int], None]:
        """See `HostPacked.prepare`."""
        rounded = [part.round(x) for part in self._parts]

        def multiply(out: F32, first: int, end: int) -> None:
            n = slice(first, end)
            for i, (part, (codes, scales)) in enumerate(zip(self._parts, rounded, strict=True)):
                with np.errstate(over="ignore"):
                    result = (part.sums(codes, n) * scales * part.scales[n]).astype(np.float32)
                    out[:, n] = out[:, n] + result if i else result

        return multiply

    def rounded(self, x: F32) -> F64:
        """See `HostPacked.rounded`."""
        return self.quantise_input(x)

    def multiplied(self, rows: slice) -> F64:
        """Return *rows* of the rounded values in the rotated basis, the parts side by side."""
        values = [part.codes[rows] * part.scales[rows, None] for part in self._parts]
        return np.concatenate(values, axis=1, dtype=np.float64)


class _OnHost:
    """One part of K of a weight.

    Attributes:
        codes: int8, or float32 with float16 values, ``[N, Kp]``.
        scales: float64 ``[N]``.
    """

    def __init__(self, part: RoundedColumns, passes: int) -> None:
        self._part, self._passes = part, passes
        self._integers = part.codes.dtype == np.int8
        self.codes: Array = part.codes if self._integers else part.codes.astype(np.float32)
        self.scales = part.scales.astype(np.float64)
        self.split([0])

    def split(self, starts: list[int]) -> None:
        """Set the first columns of the slices whose float16 sums are rounded separately."""
        self._slices = np.array([*starts, self.codes.shape[1]], np.int32)

    def round(self, x: F32) -> tuple[Array, F64]:
        """Return codes ``[passes * M, Kp]`` of x ``[M, K]`` and the scales ``[M, 1]`` of sums.

        Raises:
            NumericsError: x holds NaN or infinity.
        """
        mine, part = x[:, self._part.columns], self._part
        codes = np.zeros((self._passes * len(x), self.codes.shape[1]), self.codes.dtype)
        if self._integers:
            scales = np.empty(len(x), np.float32)
            round_rows(mine, codes, scales, signs=part.signs, block=part.block, passes=self._passes)
        else:
            scales = float16_scales(mine)
            codes[:, : mine.shape[1]] = (mine / scales[:, None]).astype(np.float16)
        steps = REMAINDER_STEPS if self._passes == 2 else 1
        return codes, scales[:, None].astype(np.float64) / steps

    def sums(self, x: Array, n: slice) -> F64:
        """Return columns *n* of the sums of the codes *x*, in units of the last pass."""
        w = self.codes[n]
        m, k = x.shape
        if not self._integers:
            sums = np.empty((m, len(w)), np.float64)
            lib().npurt_rk_float_sums(
                at("float *", x), at("float *", w), m, len(w), k,
                at("int32_t *", self._slices), len(self._slices) - 1, at("double *", sums),
            )  # fmt: skip
            return sums
        exact = np.empty((m, len(w)), np.int32)
        lib().npurt_rk_integer_sums(
            at("int8_t *", x), at("int8_t *", w), m, len(w), k, at("int32_t *", exact)
        )
        if self._passes == 1:
            return exact.astype(np.float64)
        high, low = exact[: m // 2].astype(np.float64), exact[m // 2 :]
        return high * REMAINDER_STEPS + low
