"""The RK3588 NPU as a device: weights in its memory, products as prepared jobs.

An NPU that is lost is opened anew at most `RESTARTS` times, its weights uploaded again and the
product repeated; after that it stays lost.
"""

import functools
import itertools
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from npurt.device import F32, Caps, Device, MatMul, Packed
from npurt.errors import DeviceLost, DeviceNotFound, DriverError, LayoutError, UnsupportedOp
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME
from npurt.rknpu import detect, uapi_rknpu, uapi_rocket
from npurt.rknpu.driver import Driver
from npurt.rknpu.memory import Buffer
from npurt.rknpu.numerics import best
from npurt.rknpu.product import Product
from npurt.rknpu.proof import Role
from npurt.rknpu.system import Simulator, System
from npurt.rknpu.weights import PartOnNpu, RkPacked

RESTARTS = 2
RESTART_SECONDS = 5.0  # that a driver may take to be back
RETRY_SECONDS = 0.1
KEPT = 1024  # prepared products
MAX_ROWS = 512  # of one product
SMALLEST_BUFFER = 4096
DRIVERS = {  # by what follows "rknpu:"
    "": detect.DRIVERS,
    "0": detect.DRIVERS,
    "sim": (uapi_rocket.NAME,),
    "sim-vendor": (uapi_rknpu.NAME,),
}


def rows_prepared(rows: int) -> int:
    """Return for how many rows to prepare a product of *rows*: few numbers, little waste."""
    step = 1 if rows <= 16 else 16 if rows <= 128 else 64
    return -(-rows // step) * step


class RkDevice(Device):
    """An opened NPU.

    Args:
        name: What it is called in device strings.
        connect: Opens the driver; called again after a failure.
        simulated: Whether it is a simulator.

    Raises:
        NpurtError: It cannot be opened; see `detect.open_driver`.
    """

    def __init__(self, name: str, connect: Callable[[], Driver], *, simulated: bool) -> None:
        self._connect = connect
        self._driver = connect()
        self._numbers = itertools.count()
        self._packed: weakref.WeakValueDictionary[int, RkPacked] = weakref.WeakValueDictionary()
        self._products: OrderedDict[tuple[tuple[int, ...], int], Product] = OrderedDict()
        self._buffers: dict[tuple[str, int, int], Buffer] = {}
        self._failures = 0
        self._news: list[str] = []
        self.caps = Caps(name, self._driver.detail, simulated)

    # --- Weights ----------------------------------------------------------------------------------

    def why_not(self, op: MatMul) -> str | None:
        """Return None, or why *op* cannot run: any shape can."""
        if op.format not in BY_NAME:
            return f"there is no format {op.format}"
        return "a product without elements is none" if 0 in (op.m, op.n, op.k) else None

    def pack(self, tensor: QTensor, *, fine: bool = False) -> RkPacked:
        """Round a weight by the cheapest scheme within its budget, and upload it.

        Raises:
            UnsupportedOp: It is not a matrix.
            NumericsError: It holds NaN or infinity.
            DeviceFull: There is no room for it.
        """
        reason = self.why_not(MatMul(1, tensor.shape[-1], tensor.shape[0], tensor.dtype))
        if tensor.ndim != 2 or tensor.transposed or reason:
            raise UnsupportedOp(
                f"the RK3588 backend cannot pack {tensor!r}: {reason or 'it is not [N, K]'}",
                remedy="pass a 2-D weight as it is in the file, not its .T",
            )
        packed = RkPacked(self, tensor, best(tensor, fine=fine), next(self._numbers))
        packed.upload(self._driver.spaces)
        self._packed[packed.number] = packed
        weakref.finalize(packed, self._forget, packed.number, packed.parts).atexit = False
        return packed

    def _forget(self, number: int, parts: Sequence[PartOnNpu]) -> None:
        """A weight went: its memory and the products with it go too."""
        for key in [key for key in self._products if number in key[0]]:
            self._products.pop(key).free()
        for part in parts:
            part.free()

    # --- Products ---------------------------------------------------------------------------------

    def matmul(self, x: F32, w: Packed, out: F32) -> None:
        """Write ``x @ w.T`` to *out*; errors as `matmuls`."""
        self.matmuls(x, [w], [out])

    def matmuls(self, x: F32, weights: Sequence[Packed], outs: Sequence[F32]) -> None:
        """Multiply x by each weight; those that are rounded alike run as one job.

        Raises:
            LayoutError: A weight is not of this device.
            NumericsError: x holds NaN or infinity.
            DeviceLost: The NPU failed, and opening it again did not help.
        """
        alike: dict[object, list[int]] = {}
        for i, w in enumerate(weights):
            if not isinstance(w, RkPacked) or w.device is not self:
                raise LayoutError(
                    f"a weight of {w.device.caps.name} cannot multiply on {self.caps.name}",
                    remedy="pack it for this device",
                )
            alike.setdefault(w.scheme, []).append(i)
        for group in alike.values():
            mine = [w for w in (weights[i] for i in group) if isinstance(w, RkPacked)]
            for start in range(0, len(x), MAX_ROWS):
                rows = slice(start, start + MAX_ROWS)
                self._run(x[rows], mine, [outs[i][rows] for i in group])

    def _run(self, x: F32, weights: list[RkPacked], outs: list[F32]) -> None:
        while True:
            try:
                self._multiply(x, weights, outs)
            except DeviceLost as error:
                self._restart(error)
            else:
                return

    def _multiply(self, x: F32, weights: list[RkPacked], outs: list[F32]) -> None:
        rows = rows_prepared(len(x))
        product = self._product(weights, rows)
        if rows == len(x):
            product.run(x, outs)
            return
        padded = np.zeros((rows, x.shape[1]), np.float32)
        padded[: len(x)] = x
        wide = [np.empty((rows, out.shape[1]), np.float32) for out in outs]
        product.run(padded, wide)
        for out, result in zip(outs, wide, strict=True):
            out[:] = result[: len(x)]

    def _product(self, weights: list[RkPacked], rows: int) -> Product:
        """Return the prepared product, the least recently used of too many making room."""
        key = tuple(w.number for w in weights), rows
        product = self._products.get(key)
        if product is None:
            while len(self._products) >= KEPT:
                self._products.popitem(last=False)[1].free()
            product = self._products[key] = Product(self._driver, weights, rows, self._take)
        self._products.move_to_end(key)
        return product

    def _take(self, use: str, core: int, nbytes: int) -> Buffer:
        """Return the buffer of that use and size class: products take turns with it."""
        size = max(SMALLEST_BUFFER, 1 << (nbytes - 1).bit_length())
        if (use, core, size) not in self._buffers:
            role = Role.INPUT if use == "A" else Role.OUTPUT
            space = self._driver.spaces[core]
            self._buffers[use, core, size] = space.alloc(size, role, f"{use}, core {core}")
        return self._buffers[use, core, size]

    def multiplied(self, x: F32, w: Packed) -> F32:
        """Return x as the NPU sees it: rotated and rounded, the parts of K side by side."""
        assert isinstance(w, RkPacked)
        return w.rounded(x)

    # --- Life -------------------------------------------------------------------------------------

    def _restart(self, error: DeviceLost) -> None:
        """Open the driver again and upload every weight.

        Raises:
            DeviceLost: *error*, when that was done too often or does not work.
        """
        self._failures += 1
        if self._failures > RESTARTS:
            raise error
        self._let_go()
        self._driver = self._reopen(error)
        for packed in list(self._packed.values()):
            packed.upload(self._driver.spaces)
        self._news.append(f"{self.caps.name} was opened again: {error.what}")

    def _reopen(self, error: DeviceLost) -> Driver:
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                return self._connect()
            except (DeviceNotFound, DriverError):
                if time.monotonic() > deadline:
                    raise error from None
                time.sleep(RETRY_SECONDS)

    def news(self) -> list[str]:
        """Return what happened since the last call."""
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        """Release the NPU.  A second call does nothing."""
        self._let_go()

    def _let_go(self) -> None:
        """Close the driver, and with it all memory."""
        for packed in self._packed.values():
            packed.parts.clear()
        self._products.clear()
        self._buffers.clear()
        self._driver.close()


def open_rknpu(name: str) -> RkDevice:
    """Open ``rknpu``, ``rknpu:0``, ``rknpu:sim`` (mainline driver) or ``rknpu:sim-vendor``.

    Raises:
        DeviceNotFound: There is no such device.
    """
    kind, _, which = name.partition(":")
    drivers = DRIVERS.get(which)
    if drivers is None:
        raise DeviceNotFound(
            f"{name!r} is no device: an RK3588 has one NPU",
            remedy="use rknpu, rknpu:0, rknpu:sim or rknpu:sim-vendor",
        )
    simulated = which.startswith("sim")
    system = Simulator() if simulated else System()
    connect = functools.partial(detect.open_driver, system, drivers)
    return RkDevice(name if which else f"{kind}:0", connect, simulated=simulated)
