"""Gated delta nets on a device: the net, its state, and the protocol of devices that run them."""

import abc
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32, F64, FLUSHED, UNIT, Caps, Device
from npurt.errors import NumericsError, UnsupportedOp

I32 = npt.NDArray[np.int32]
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
        """Return this net with its first *tokens* tokens only."""
        names = ("q", "k", "v", "decay", "beta", "out")
        return replace(self, **{name: getattr(self, name)[:, :tokens] for name in names})

    def after(self, tokens: int) -> "DeltaNet":
        """Return this net without its first *tokens* tokens."""
        names = ("q", "k", "v", "decay", "beta", "out")
        return replace(self, **{name: getattr(self, name)[:, tokens:] for name in names})


@dataclass(frozen=True, slots=True)
class DeltaError:
    """The error that results of a `DeltaNet` on a device may have."""

    # Standard error of a product with a row of the state, relative to the product of both norms.
    # Any other value has the same standard error, relative to itself.
    relative: float
    absolute: float  # error of each element of k and q


@runtime_checkable
class DeltaNets(Protocol):
    """A device that runs gated delta nets.

    The defaults of this class are the error of float32 sums and float32 states.
    """

    caps: Caps

    @abc.abstractmethod
    def why_not_delta(self, net: DeltaNet) -> str | None:
        """Return None when `delta_net` can run *net*, else a sentence saying what rules it out."""

    @property
    def delta_error(self) -> DeltaError:
        """The error of `delta_net`; the default is that of float32 sums of 128 terms."""
        return DeltaError(16 * UNIT, FLUSHED)

    @abc.abstractmethod
    def delta_net(self, net: DeltaNet) -> None:
        """Run *net*: write its `out` and advance its `state`; on failure `state` is unchanged.

        Use `delta_state` to run a net token by token.

        Raises:
            UnsupportedOp: `why_not_delta` returned a reason.
        """

    def delta_state(self, net: DeltaNet) -> "DeltaState":
        """Return a state that starts with `net.state` and advances with each call."""
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


# Layout of a state in integers, [N, H, W (of v), W (of k) + 2].  Devices that compute in integers
# use it, also in snapshots and files.  Row v has the W integers along k, then the exponent of row
# v, then the gain of column k = v:
#
#     S[v, k] = integer[v, k] * gain[k] / 2^31 * 2^exponent[v]
STATE_INTEGERS = range(-(1 << 30) - (1 << 16), (1 << 30) + (1 << 16) + 1)
STATE_EXPONENTS = range(-(1 << 24), 1 << 24)
STATE_GAINS = range(1 << 30, 1 << 31)
STATE_BITS = 30  # of the greatest integer of a row that was converted from float32
EMPTY_ROW = -400  # the exponent of a row of zeros: far below all float32


def state_values(exact: npt.NDArray[Any]) -> F32:
    """Return a state ``[N, H, W, W]`` as float32; *exact* is float32 or has the integer layout."""
    if exact.dtype == np.float32:
        return exact
    integers, exponents, gains = exact[..., :-2], exact[..., -2:-1], exact[..., None, :, -1]
    with np.errstate(over="ignore", under="ignore"):
        values: F64 = np.ldexp(integers * (gains / 2.0**31), np.minimum(exponents, 900))
        return values.astype(np.float32)


def state_integers(values: F32) -> I32:
    """Return the integers of a float32 state ``[N, H, W (of v), W (of k)]``.

    The greatest element of a row of v has 30 bits, and all gains are 1/2.

    Raises:
        NumericsError: The state holds NaN or infinity.
    """
    greatest = np.abs(values).max(axis=-1, keepdims=True)
    if not np.isfinite(greatest).all():
        raise NumericsError(
            "the state of a delta net holds NaN or infinity",
            remedy="run it with device 'cpu'; if that fails too, download the model again",
        )
    bits = np.frexp(greatest)[1]
    exact = np.empty((*values.shape[:-1], values.shape[-1] + 2), np.int32)
    exact[..., :-2] = np.rint(np.ldexp(values, STATE_BITS - bits))
    exact[..., -2:-1] = np.where(greatest > 0, bits - STATE_BITS + 1, EMPTY_ROW)
    exact[..., -1] = STATE_GAINS[0]
    return exact


def is_state(exact: npt.NDArray[Any]) -> bool:
    """Return whether *exact* (float32 or integers) is a valid state: finite or in range."""
    if exact.dtype == np.float32:
        return bool(np.isfinite(exact).all())
    parts = (exact[..., :-2], exact[..., -2], exact[..., -1])
    ranges = (STATE_INTEGERS, STATE_EXPONENTS, STATE_GAINS)
    return all(
        not part.size or (part.min() >= values[0] and part.max() <= values[-1])
        for part, values in zip(parts, ranges, strict=True)
    )


class DeltaState:
    """The state of a delta net between calls, in the format of its device.

    The format is private to each class.  This class stores float32.
    """

    integers = False  # True if `exact` returns integers, False if float32

    def __init__(self, device: DeltaNets, net: DeltaNet) -> None:
        self._device, self._values = device, net.state.copy()

    def advance(self, net: DeltaNet) -> None:
        """Run *net* from this state, ignoring `net.state`; a failure leaves the state unchanged.

        Raises the errors of `DeltaNets.delta_net`.
        """
        self._device.delta_net(replace(net, state=self._values))

    def write(self, values: F32) -> None:
        """Set the state to *values* ``[N, H, W (of v), W (of k)]``."""
        self._values[...] = values

    def checkpoint(self) -> Any:
        """Return an exact copy of the state, in the device's format, for `restore_checkpoint`."""
        return self._values.copy()

    def restore_checkpoint(self, checkpoint: Any) -> None:
        """Set the state to *checkpoint*, which `checkpoint` returned."""
        self._values[...] = checkpoint

    def to_float32(self, checkpoint: Any, heads: slice = ALL) -> F32:
        """Return *heads* of *checkpoint*, which `checkpoint` returned, as float32 ``[N, H, W, W]``.

        The caller must not write to the result.  This method works after the device was lost.
        """
        values: F32 = checkpoint[:, heads]
        return values

    def history(self, checkpoint: Any) -> "tuple[npt.NDArray[Any], tuple[DeltaNet, ...]]":
        """Convert *checkpoint*, from `checkpoint`, to an exact state and the tokens after it.

        This method needs no device.  To continue, another kind of state restores the exact state
        and advances by these tokens.
        """
        return checkpoint, ()

    def read(self, heads: slice = ALL) -> F32:
        """Return the current state as float32, like `to_float32`."""
        return self.to_float32(self.checkpoint(), heads)

    def exact(self) -> npt.NDArray[Any]:
        """Return an exact copy of the current state: float32 or integers.

        Raises:
            DriverError: The device that holds the state failed.
        """
        return self.read().copy()

    def restore(self, exact: npt.NDArray[Any]) -> None:
        """Set the state to *exact*, which `exact` returned on this or another type of device."""
        self.write(state_values(exact))
