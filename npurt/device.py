"""The contract between a backend and everything above it.

A device packs weights once and multiplies by them many times.  It says why when it cannot, and what
it really multiplied, so that its results can be verified.
"""

import abc
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from npurt import moved
from npurt.errors import LayoutError, UnsupportedOp
from npurt.quant.tensor import QTensor

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
FLOAT = np.dtype(np.float32)
UNIT = 2.0**-24  # half an ulp of float32, relative
FLUSHED = 2.0**-126  # what is smaller may count as 0, or has fewer bits
MOST_CODES = 2.0**16  # more than twice the largest code of activations, 255 * 127 + 127
MOST_SUM = 2.0**27  # more than the sum of 32 products of those with codes of weights, and 4
ALL = slice(None)
MAX_ROWS = 512  # that a device multiplies at once: NPURT_MOST_ROWS of npurt_cpu.h
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
        int16: The product wants activations of 16 bits; see `Device.pack`.
        call: Weights with the same number are multiplied by the same x, in one call.
    """

    op: MatMul
    int16: bool
    call: str


@dataclass(frozen=True, slots=True)
class Saving:
    """An estimate: what is saved when a product runs on a device and not on its host.

    Attributes:
        seconds: Time saved by each product; negative when the device is slower.
        nbytes: Bytes of the weight on the device.
    """

    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """A gated delta net: for each token and head, with ``a = e^decay``.

    ``d = beta (v - S (a k)); S = a S + d k^T; out = scale S q``

    Arrays may be views of float32, contiguous along their last axis.  Letters: N sequences, T
    tokens, K and H heads of k and v (K divides H), W width.
    """

    q: F32  # [N, T, K, W]
    k: F32
    v: F32  # [N, T, H, W]
    decay: F32  # [N, T, H, 1], logarithms; or [N, T, H, W], one for each element of k
    beta: F32  # [N, T, H]
    out: F32  # [N, T, H, W], written
    state: F32  # [N, H, W (of v), W (of k)], read and written
    scale: float
    grouped: bool  # v head h has k head h // (H // K), not h % K

    def first(self, tokens: int) -> "DeltaNet":
        """Return the net of the first *tokens* tokens."""
        names = ("q", "k", "v", "decay", "beta", "out")
        return replace(self, **{name: getattr(self, name)[:, :tokens] for name in names})

    def after(self, tokens: int) -> "DeltaNet":
        """Return the net of what comes after *tokens* tokens."""
        names = ("q", "k", "v", "decay", "beta", "out")
        return replace(self, **{name: getattr(self, name)[:, tokens:] for name in names})


@dataclass(frozen=True, slots=True)
class DeltaError:
    """The error that results of a `DeltaNet` on a device may have."""

    relative: float  # standard error of a product with a row of the state, per unit of both norms;
    # of any other value, per unit of that value
    least: float  # absolute error of each element of k and q


@dataclass(frozen=True, slots=True)
class Caps:
    """What a device is."""

    name: str  # as in device strings: "cpu", "hexagon:0", "rknpu:sim"
    detail: str  # for people: instruction set, threads, driver version
    simulated: bool


class Packed(abc.ABC):
    """A weight ``[N, K]``, or a stack ``[E, N, K]``, in the memory and layout of one device."""

    tensor: QTensor  # the tensor that was packed; its codes are the same
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
        """Return *rows* ``[n, K']`` of what the device really multiplies by.

        A device that rounds scales or codes, or rotates K, overrides this method; its
        `Device.multiplied` has the same K'.  This implementation returns the tensor's own values,
        in float64.
        """
        return self.tensor[rows].canonical().exact()

    def error(self, rows: slice) -> F64:
        """Return the standard error ``[n]`` of results of *rows*, per unit of the norm of x.

        `Device.magnitudes` may replace the norm by another measure of x.  The error is that of
        rounding after the operands were rounded.  Verification accepts a result within eight
        standard errors plus `floor`.

        This implementation assumes float32 arithmetic: five independent roundings for each group
        of columns, of partial sums that do not exceed the norm of the row's scaled codes plus
        offsets.  It adds what is lost of numbers below 2^-126, per unit of x (`npurt.verify`
        derives it).
        """
        canonical = self.tensor[rows].canonical()
        roundings = 2 + self.k * (5 / canonical.group if canonical.group > 1 else 1)
        norms = np.sqrt((canonical.sizes() ** 2).sum(axis=1))
        bound: F64 = UNIT * math.sqrt(roundings) * norms + FLUSHED * 256 * math.sqrt(self.k)
        return bound

    def floor(self, rows: slice) -> F64:
        """Return the part of the error of results ``[n]`` of *rows* that does not shrink with x.

        This implementation returns what float32 kernels lose of numbers below 2^-126.
        """
        canonical = self.tensor[rows].canonical()
        sums, codes = (MOST_SUM, MOST_CODES) if canonical.group > 1 else (2.0, 1.0)
        norms = np.sqrt((canonical.sizes() ** 2).sum(axis=1))
        lost: F64 = FLUSHED * (sums * self.k / canonical.group + codes * math.sqrt(self.k) * norms)
        return lost

    def peak(self, rows: slice, x: F64) -> F64:
        """Return a bound of all intermediate values of the results ``[M, n]`` of *rows*.

        Args:
            x: What `Device.multiplied` returns.

        This implementation bounds the products of scales, the sums of activations where the format
        has offsets, and all terms.
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
    """Make sure that `Device.matmuls` can rely on what it is given.

    A product of no rows is valid.  This function runs before every product, so it has to take no
    longer than a microsecond.

    Args:
        strided: The device takes arrays that are not in C order, too.

    Raises:
        LayoutError: Something does not fit; kernels would read or write beyond it.
    """
    shape = x.shape
    fits = x.dtype == FLOAT and len(shape) == 2 and (strided or x.flags.c_contiguous)
    if fits and weights and len(weights) == len(outs):
        rows, k = shape
        for i, w in enumerate(weights):  # zip(strict=True) takes as long as all of this
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
    """An opened device.  Not thread-safe: one thread per Device, or your own lock."""

    caps: Caps

    @abc.abstractmethod
    def why_not(self, op: MatMul) -> str | None:
        """Return None when the device can run *op*, else a sentence saying what rules it out."""

    @abc.abstractmethod
    def pack(self, tensor: QTensor, *, int16: bool | None = False) -> Packed:
        """Lay out a 2-D *tensor* ``[N, K]`` for this device.

        Args:
            int16: True: products take activations of 16 bits (docs/decisions/006).  None: the
                device takes 16 bits for the rows of activations that 8 bits would round too much.
                A device with one precision ignores it.

        Raises:
            UnsupportedOp: `why_not` has a reason against its format.
        """

    def reserve(self, uses: Sequence[Use], nets: Sequence[DeltaNet] = ()) -> None:  # noqa: B027
        """Reserve the working memory of the products with *uses* and of the delta nets *nets*.

        The caller reserves it before it packs weights, which may fill the rest.

        Raises:
            DeviceFull: The device has less memory.
        """

    @abc.abstractmethod
    def matmul(self, x: F32, w: Packed, out: F32) -> None:
        """Write ``x @ w.T`` to *out*: x ``[M, K]`` and out ``[M, N]``, float32, C order.

        M may be 0.

        Raises:
            LayoutError: Shapes, types or order differ, or *w* belongs to another device.
        """

    def matmuls(self, x: F32, weights: Sequence[Packed], outs: Sequence[F32]) -> None:
        """`matmul` of one x with several weights: in one call to the device where it can."""
        if len(weights) != len(outs):
            raise _misfit(self, x, weights, outs)
        for w, out in zip(weights, outs, strict=True):
            self.matmul(x, w, out)

    @abc.abstractmethod
    def multiplied(self, x: F32, w: Packed) -> F64:
        """Return the activations ``[M, K']`` that `matmul` really multiplies: x after rounding."""

    def magnitudes(self, x: F32, w: Packed) -> F64 | None:
        """Return for each row of x the number that `Packed.error` is multiplied by.

        None means the norm of the row that `multiplied` returns.
        """
        return None

    def packets(self) -> int:
        """Return the packets of instructions executed so far; 0 where the device counts none."""
        return 0

    def events(self) -> list[str]:
        """Return the events since the last call that users should know, such as a restart."""
        return []

    def status_note(self) -> str:
        """Return a sentence for reports, such as the number of repeated jobs; "" for none."""
        return ""

    news = moved.attribute("events")
    remark = moved.attribute("status_note")

    @abc.abstractmethod
    def close(self) -> None:
        """Release the device, which refuses to work from then on.  A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# --- What only some devices can do: ask with isinstance -------------------------------------------


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
    """A device that knows what it saves."""

    def saving(self, op: MatMul, *, int16: bool = False) -> Saving | None:
        """Return what *op* is expected to save, the same at each call; None when it is unknown."""


@runtime_checkable
class DeltaNets(Protocol):
    """A device that runs gated delta nets.

    A class that inherits from this one has the usual error and float32 states.
    """

    caps: Caps

    @abc.abstractmethod
    def why_not_delta(self, net: DeltaNet) -> str | None:
        """Return None when `delta_net` can run *net*, else a sentence saying what rules it out."""

    @property
    def delta_error(self) -> DeltaError:
        """The error of `delta_net`.  This implementation: of float32 sums of 128 terms."""
        return DeltaError(16 * UNIT, FLUSHED)

    @abc.abstractmethod
    def delta_net(self, net: DeltaNet) -> None:
        """Run *net*: write its `out`, advance its `state`; a net that fails leaves its `state`.

        Use `delta_state` to run a net token by token.

        Raises:
            UnsupportedOp: `why_not_delta` has a reason against it.
        """

    def delta_state(self, net: DeltaNet) -> "DeltaState":
        """Return a state that starts as that of *net* and advances from call to call."""
        return DeltaState(self, net)


def why_not_delta(device: Device, net: DeltaNet) -> str | None:
    """Return None when *device* can run *net*, else a sentence saying what rules it out."""
    if isinstance(device, DeltaNets):
        return device.why_not_delta(net)
    return f"{device.caps.name} has no kernel for the gated delta net"


def require_delta(device: DeltaNets, net: DeltaNet) -> None:
    """Raise UnsupportedOp if *device* refuses *net*."""
    if reason := device.why_not_delta(net):
        raise UnsupportedOp(
            f"cannot run a gated delta net: {reason}",
            remedy="use CpuDevice.delta_net(), which takes heads of 16 to 128",
        )


# The integers of a state as an array, [N, H, W (of v), W (of k) + 2]: what a device that computes
# in integers keeps, in snapshots and files too.  In a row of v come integers along k, then the
# exponent of the row, then the gain of the column of k with the same number:
#
#     S[v, k] = integer[v, k] * gain[k] / 2^31 * 2^exponent[v]
STATE_INTEGERS = range(-(1 << 30) - (1 << 16), (1 << 30) + (1 << 16) + 1)
STATE_EXPONENTS = range(-(1 << 24), 1 << 24)
STATE_GAINS = range(1 << 30, 1 << 31)


def state_values(exact: npt.NDArray[Any]) -> F32:
    """Return a state ``[N, H, W, W]`` as float32, from float32 or from integers; both are exact."""
    if exact.dtype == np.float32:
        return exact
    integers, exponents, gains = exact[..., :-2], exact[..., -2:-1], exact[..., None, :, -1]
    with np.errstate(over="ignore", under="ignore"):
        values: F64 = np.ldexp(integers * (gains / 2.0**31), np.minimum(exponents, 900))
        return values.astype(np.float32)


def is_state(exact: npt.NDArray[Any]) -> bool:
    """Return whether a device can continue from this array of float32 or integers."""
    if exact.dtype == np.float32:
        return bool(np.isfinite(exact).all())
    parts = (exact[..., :-2], exact[..., -2], exact[..., -1])
    ranges = (STATE_INTEGERS, STATE_EXPONENTS, STATE_GAINS)
    return all(
        not part.size or (part.min() >= values[0] and part.max() <= values[-1])
        for part, values in zip(parts, ranges, strict=True)
    )


class DeltaState:
    """The state of a delta net from call to call, in the form of its device.

    Only this object knows the form.  In this class it is float32, in the array of *net*.
    """

    integers = False  # whether `exact` returns integers, or float32

    def __init__(self, device: DeltaNets, net: DeltaNet) -> None:
        self._device, self._values = device, net.state

    def advance(self, net: DeltaNet) -> None:
        """Run *net* from this state, not from `net.state`; a failure leaves the state unchanged.

        Raises what `DeltaNets.delta_net` does.
        """
        self._device.delta_net(replace(net, state=self._values))

    def write(self, values: F32) -> None:
        """Set the state to *values* ``[N, H, W (of v), W (of k)]``."""
        self._values[...] = values

    def checkpoint(self) -> Any:
        """Return a copy of the state for `restore_checkpoint`, exact also where float32 is not."""
        return self._values.copy()

    def restore_checkpoint(self, kept: Any) -> None:
        """Set the state to what `checkpoint` returned."""
        self._values[...] = kept

    def to_float32(self, kept: Any, heads: slice = ALL) -> F32:
        """Return *heads* of what `checkpoint` returned, as float32 ``[N, H, W, W]``.

        The caller must not write to it.  It works after the device was lost.
        """
        values: F32 = kept[:, heads]
        return values

    keep = moved.attribute("checkpoint")
    resume = moved.attribute("restore_checkpoint")
    values = moved.attribute("to_float32")

    def read(self, heads: slice = ALL) -> F32:
        """Return the present state as `to_float32` does."""
        return self.to_float32(self.checkpoint(), heads)

    def exact(self) -> npt.NDArray[Any]:
        """Return an exact copy of the present state: float32 or integers.

        Raises:
            DriverError: The device that holds it does not answer any more.
        """
        return self.read().copy()

    def restore(self, exact: npt.NDArray[Any]) -> None:
        """Set the state to what `exact` returned, here or on another kind of device."""
        self.write(state_values(exact))
