"""Compute the products of an NPU on the host's CPU, with the bits of the NPU.

A weight keeps the arithmetic of the device that it was packed for: if the NPU is lost, or a product
is wrong, the CPU computes what the NPU would have computed, so no token changes.  These products
are slower than those of the CPU's own arithmetic.  See docs/decisions/039.
"""

import abc
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from npurt.device.device import F32, F64, Caps, Device, MatMul, Packed, check_product
from npurt.errors import UnsupportedOp
from npurt.quant.tensor import QTensor

STEP = 64  # a thread's share of columns is a multiple of this number
SMALL = 1 << 20  # multiply-adds below which more threads do not help


class HostPacked(Packed):
    """A weight of an NPU in the memory of the host, in a layout for `multiply`."""

    device: "HostDevice"

    @abc.abstractmethod
    def prepare(self, x: F32) -> Callable[[F32, int, int], None]:
        """Round *x* ``[M, K]``; return a function that writes columns of the product.

        The function's arguments are the result ``[M, N]``, the first column, and the end.  Several
        threads may call it at a time.

        Raises:
            NumericsError: *x* holds NaN or infinity.
        """

    @abc.abstractmethod
    def rounded(self, x: F32) -> F64:
        """Return *x* after rounding, as `Device.multiplied`."""

    def magnitudes(self, x: F32) -> F64 | None:
        """Return the unit of `Packed.error` for each row of x, as `Device.magnitudes`."""
        del x
        return None


class HostDevice(Device):
    """The host's CPU, which multiplies in the arithmetic of an NPU.

    Args:
        npu: The name of the NPU.
        threads: The number of threads.
    """

    def __init__(self, npu: str, threads: int) -> None:
        self._threads = threads
        self.caps = Caps("cpu", f"the arithmetic of {npu}, {threads} threads", simulated=False)

    def why_not(self, op: MatMul) -> str | None:
        """Return why the device cannot pack a weight for *op*: an NPU must have packed it."""
        del op
        return "it has only weights that an NPU had"

    def pack(self, tensor: QTensor, *, int16: bool | None = False) -> Packed:
        """Raise UnsupportedOp; `KeepsArithmetic.on_host` makes the weights of this device."""
        raise UnsupportedOp(
            f"cannot pack {tensor!r}: {self.caps.detail} has only weights that an NPU had",
            remedy="pack it for device 'cpu'",
        )

    def matmul(self, x: F32, w: Packed, out: F32) -> None:
        """Write ``x @ w.T`` to *out*; see `Device.matmul`.

        Raises:
            NumericsError: *x* holds NaN or infinity.
        """
        check_product(self, x, [w], [out])
        assert isinstance(w, HostPacked)
        if not len(x):
            return
        multiply = w.prepare(x)
        threads = self._threads if len(x) * w.n * w.k >= SMALL else 1
        if threads == 1:
            multiply(out, 0, w.n)
            return
        # Imported here, because few programs lose an NPU.  Threads that live only for this product
        # need no care at a fork, a close or an exit.
        from concurrent.futures import ThreadPoolExecutor

        share = -(-w.n // (threads * STEP)) * STEP
        starts = range(0, w.n, share)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda first: multiply(out, first, min(first + share, w.n)), starts))

    def multiplied(self, x: F32, w: Packed) -> F64:
        """Return x after the rounding of the NPU; see `Device.multiplied`."""
        assert isinstance(w, HostPacked)
        return w.rounded(x)

    def magnitudes(self, x: F32, w: Packed) -> F64 | None:
        """Return the unit of `Packed.error`; see `Device.magnitudes`."""
        assert isinstance(w, HostPacked)
        return w.magnitudes(x)

    def close(self) -> None:
        """Do nothing: the device has no state."""


@runtime_checkable
class KeepsArithmetic(Protocol):
    """A device whose products the host can compute with the same bits."""

    def on_host(self, packed: Packed, threads: int) -> Packed:
        """Return *packed* for a `HostDevice` with *threads* threads.

        The device may be lost: its memory is not read.
        """


def moved_to_host(packed: Packed, cpu: Device, threads: int) -> Packed:
    """Return *packed* for the host's CPU, which computes with the same bits if it can.

    If it cannot, the products get the arithmetic of *cpu*.
    """
    if isinstance(packed.device, KeepsArithmetic):
        return packed.device.on_host(packed, threads)
    return cpu.pack(packed.tensor)
