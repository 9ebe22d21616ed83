"""The interface of devices: pack weights once, then multiply by them many times.

A device returns the reason if it cannot run a product.  It also returns the rounded operands of a
product, so that the caller can verify the result.
"""

import abc
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError
from npurt.quant.tensor import QTensor

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
FLOAT = np.dtype(np.float32)
UNIT = 2.0**-24  # half an ulp of float32, relative
LAMBDA = 8.0  # largest accepted error of a result, in standard errors
FLUSHED = 2.0**-126  # smallest normal float32; smaller numbers lose bits or count as 0
MAX_CODES = 2.0**16  # more than twice the largest code of activations, 255 * 127 + 127
MAX_SUM = 2.0**27  # upper bound of a group's sum: 32 products of a weight and an activation code
MAX_ROWS = 512  # rows that a device multiplies at once: NPURT_MOST_ROWS of npurt_cpu.h
MAX_EXACT_K = (1 << 31) // (128 * 128) - 1  # 131071: the largest sums of int8 products fit int32


@dataclass(frozen=True, slots=True)
class MatMul:
    """One product ``y[m, n] = x[m, k] @ w[n, k].T`` with float32 x and y."""

    m: int
    k: int
    n: int
    format: str  # of w: a name in `npurt.quant.types.FORMATS`


@dataclass(frozen=True, slots=True)
class Use:
    """A weight that a device will get, and the largest product with it.

    Attributes:
        op: The largest product.
        int16: The product needs activations of 16 bits; see `Device.pack`.
        call: Weights with the same number are multiplied by the same x, in one call.
    """

    op: MatMul
    int16: bool
    call: str


@dataclass(frozen=True, slots=True)
class Saving:
    """An estimate of the gain from running a product on a device instead of its host.

    Attributes:
        seconds: Time saved by each product; negative when the device is slower.
        nbytes: Bytes of the weight on the device.
    """

    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Caps:
    """The name and description of a device."""

    name: str  # as in device strings: "cpu", "hexagon:0", "rknpu:sim"
    detail: str  # for reports: instruction set, threads, driver version
    simulated: bool


class Packed(abc.ABC):
    """A weight ``[N, K]``, or a stack ``[E, N, K]``, in the memory and layout of one device."""

    tensor: QTensor  # the tensor that was packed, with unchanged codes
    device: "Device"

    @functools.cached_property
    def n(self) -> int:
        """Rows of the weight, columns of the result."""
        return self.tensor.shape[-2]

    @functools.cached_property
    def k(self) -> int:
        """Columns of the weight, the length of the sums."""
        return self.tensor.shape[-1]

    @property
    @abc.abstractmethod
    def nbytes(self) -> int:
        """Bytes on the device, read once for each product with one row."""

    def first(self, n: int) -> "Packed":
        """Return the first *n* rows or more of a weight ``[N, K]``, in the same memory.

        This implementation returns all rows, for devices that cannot cut a weight.
        """
        del n
        return self

    def multiplied(self, rows: slice) -> F64:
        """Return *rows* ``[n, K']`` of the weight's values after the device's rounding.

        A device that rounds scales or codes, or rotates K, overrides this method and
        `Device.multiplied`, whose results have the same K'.  This implementation returns the
        tensor's unrounded values in float64.
        """
        return self.tensor[rows].canonical().exact()

    def error(self, rows: slice) -> F64:
        """Return the standard error ``[n]`` of results of *rows*, per unit of the norm of x.

        `Device.magnitudes` may replace the norm by another measure of x.  The error excludes the
        rounding of the operands; `multiplied` includes it.  Verification accepts a result within
        eight standard errors plus `floor`.

        This implementation assumes float32 arithmetic: five independent roundings for each group
        of columns.  The rounded partial sums do not exceed the norm of the row's scaled codes plus
        offsets.  The result includes the error of numbers below 2^-126 that grows with x;
        `npurt.device.verify` derives it.
        """
        canonical = self.tensor[rows].canonical()
        roundings = 2 + self.k * (5 / canonical.group if canonical.group > 1 else 1)
        norms = np.sqrt((canonical.sizes() ** 2).sum(axis=1))
        bound: F64 = UNIT * math.sqrt(roundings) * norms + FLUSHED * 256 * math.sqrt(self.k)
        return bound

    def floor(self, rows: slice) -> F64:
        """Return the part ``[n]`` of the error of results of *rows* that does not depend on x.

        This implementation returns the error of float32 kernels from numbers below 2^-126.
        """
        canonical = self.tensor[rows].canonical()
        sums, codes = (MAX_SUM, MAX_CODES) if canonical.group > 1 else (2.0, 1.0)
        norms = np.sqrt((canonical.sizes() ** 2).sum(axis=1))
        lost: F64 = FLUSHED * (sums * self.k / canonical.group + codes * math.sqrt(self.k) * norms)
        return lost

    def peak(self, rows: slice, x: F64) -> F64:
        """Return an upper bound ``[M, n]`` of the intermediate values of results of *rows*.

        This implementation bounds the products of scales, the sums of activations (if the format
        has offsets), and the sum of all terms.

        Args:
            x: The activations ``[M, K']`` that `Device.multiplied` returned.
        """
        canonical = self.tensor[rows].canonical()
        terms = abs(x) @ canonical.sizes().T
        largest = abs(canonical.scales.astype(np.float64)).max(axis=1)
        if canonical.offsets is not None:
            largest = np.maximum(largest, canonical.group)
        peak: F64 = terms + abs(x).max(axis=1, keepdims=True) * largest
        return peak


def check_product(
    device: "Device",
    x: F32,
    weights: Sequence[Packed],
    outs: Sequence[F32],
    *,
    strided: bool = False,
) -> None:
    """Check the arguments of `Device.matmuls`; kernels do not check bounds.

    A product of no rows is valid.  This function runs before every product, so it must take at most
    a microsecond.

    Args:
        strided: The device also takes arrays that are not in C order.

    Raises:
        LayoutError: A shape, dtype or order is wrong, or a weight belongs to another device.
    """
    shape = x.shape
    fits = x.dtype == FLOAT and len(shape) == 2 and (strided or x.flags.c_contiguous)
    if fits and weights and len(weights) == len(outs):
        rows, k = shape
        for i, w in enumerate(weights):  # zip(strict=True) would double the time of this check
            out = outs[i]
            if w.k != k or w.device is not device or out.shape != (rows, w.n):
                break
            if out.dtype != FLOAT or not (out.flags.writeable if strided else out.flags.carray):
                break
        else:
            return
    raise _misfit(device, x, weights, outs)


def _misfit(
    device: "Device", x: F32, weights: Sequence[Packed], outs: Sequence[F32]
) -> LayoutError:
    strangers = [w.device.caps.name for w in weights if w.device is not device]
    if strangers:
        return LayoutError(
            f"a weight of another device ({strangers[0]}) cannot multiply on {device.caps.name}",
            remedy="pack it for this device",
        )
    names = ", ".join(f"[{w.n}, {w.k}]" for w in weights)
    results = ", ".join(f"{out.dtype} {list(out.shape)}" for out in outs)
    return LayoutError(
        f"x {x.dtype} {list(x.shape)}, weights {names or 'none'} and results {results or 'none'} "
        "do not fit",
        remedy="pass x [M, K] and a result [M, N] for each weight [N, K], all float32 in C order "
        "(numpy.ascontiguousarray), results writeable",
    )


class Device(abc.ABC):
    """An opened device.  It is not thread-safe: use it in one thread only, or with a lock."""

    caps: Caps

    @abc.abstractmethod
    def why_not(self, op: MatMul) -> str | None:
        """Return None when the device can run *op*, else a sentence saying what rules it out."""

    @abc.abstractmethod
    def pack(self, tensor: QTensor, *, int16: bool | None = False) -> Packed:
        """Lay out a 2-D *tensor* ``[N, K]`` for this device.

        Args:
            int16: True rounds activations to 16 bits (docs/decisions/006).  None uses 16 bits only
                for rows of activations that would lose too much precision with 8 bits.  A device
                with one precision ignores *int16*.

        Raises:
            UnsupportedOp: `why_not` returned a reason for the tensor's format.
        """

    def reserve(self, uses: Sequence[Use]) -> None:  # noqa: B027
        """Reserve the working memory of products with the weights in *uses*.

        The caller reserves this memory before packing weights, which may fill the rest.

        Raises:
            DeviceFull: The device does not have enough memory.
        """

    @abc.abstractmethod
    def matmul(self, x: F32, w: Packed, out: F32) -> None:
        """Write ``x @ w.T`` to *out*: x ``[M, K]`` and out ``[M, N]``, float32, C order.

        M may be 0.

        Raises:
            LayoutError: Shapes, types or order differ, or *w* belongs to another device.
        """

    def matmuls(self, x: F32, weights: Sequence[Packed], outs: Sequence[F32]) -> None:
        """Multiply one x by several weights, in one call to the device if it supports that."""
        if len(weights) != len(outs):
            raise _misfit(self, x, weights, outs)
        for w, out in zip(weights, outs, strict=True):
            self.matmul(x, w, out)

    @abc.abstractmethod
    def multiplied(self, x: F32, w: Packed) -> F64:
        """Return the activations ``[M, K']`` that `matmul` multiplies: x after rounding."""

    def magnitudes(self, x: F32, w: Packed) -> F64 | None:
        """Return the magnitude ``[M]`` of each row of x, the unit of `Packed.error`.

        None means the norms of the rows that `multiplied` returns.
        """
        return None

    def packets(self) -> int:
        """Return the number of instruction packets executed so far; 0 if the device has none."""
        return 0

    def call_count(self) -> int:
        """Return the number of calls to the device so far: FastRPC calls, or jobs; 0 if unknown."""
        return 0

    def restarts(self) -> int:
        """Return how often the device was lost and opened again."""
        return 0

    def events(self) -> list[str]:
        """Return the events to report to users, such as restarts, since the last call."""
        return []

    def status_note(self) -> str:
        """Return a sentence for reports, such as the number of repeated jobs; "" for none."""
        return ""

    @abc.abstractmethod
    def close(self) -> None:
        """Release the device; later calls raise NpurtError.  A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.caps.name}>"


# --- Optional abilities of devices: test with isinstance; see also `npurt.device.delta` -----------


@runtime_checkable
class ExactInt8(Protocol):
    """A device with exact products of int8 arrays."""

    def matmul_i8(self, a: npt.NDArray[np.int8], b: npt.NDArray[np.int8]) -> npt.NDArray[np.int32]:
        """Return ``a @ b``, exact: a ``[M, K]``, b ``[K, N]``, K at most `MAX_EXACT_K`."""


@runtime_checkable
class RowScaledInt8(Protocol):
    """A device that multiplies by int8 weights with one scale a row."""

    def pack_i8(self, codes: npt.NDArray[np.int8], scales: F32) -> Packed:
        """Lay out *codes* ``[N, K]`` with a scale for each row ``[N]``.

        Products round activations to int8 with one scale a row.
        """


@runtime_checkable
class Estimates(Protocol):
    """A device that estimates how much time it saves."""

    def saving(self, op: MatMul, *, int16: bool = False) -> Saving | None:
        """Return the expected saving of *op*, or None if unknown; repeated calls agree."""
