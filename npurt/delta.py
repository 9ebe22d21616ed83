"""Gated delta nets on a device: the net, its state, and the protocol of devices that run them."""

import abc
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from npurt import moved
from npurt.device import F32, F64, FLUSHED, UNIT, Caps, Device
from npurt.errors import UnsupportedOp

ALL = slice(None)


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
        """Return the net without its first *tokens* tokens."""
        names = ("q", "k", "v", "decay", "beta", "out")
        return replace(self, **{name: getattr(self, name)[:, tokens:] for name in names})


@dataclass(frozen=True, slots=True)
class DeltaError:
    """The error that results of a `DeltaNet` on a device may have."""

    relative: float  # standard error of a product with a row of the state, per unit of both norms;
    # of any other value, per unit of that value
    least: float  # absolute error of each element of k and q


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

    Only this object knows the form.  In this class it is float32.
    """

    integers = False  # whether `exact` returns integers, or float32

    def __init__(self, device: DeltaNets, net: DeltaNet) -> None:
        self._device, self._values = device, net.state.copy()

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
