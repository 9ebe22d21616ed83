"""The RK3588 NPU as a device: weights in its memory, products as prepared jobs.

When the NPU is lost, the device opens it again and repeats the product; see `npurt.device.restart`.
"""

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from npurt.device.device import F32, F64, Caps, MatMul, Packed, Saving, Use, check_product
from npurt.device.host_products import HostDevice
from npurt.device.products import ProductDevice
from npurt.device.restart import Restarts, patiently
from npurt.errors import DriverError, UnsupportedOp
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME
from npurt.rknpu.device.adaptive import AdaptivePacked
from npurt.rknpu.device.estimate import saving
from npurt.rknpu.device.host import RkHostPacked
from npurt.rknpu.device.multiply import multiply, multiply_i8
from npurt.rknpu.device.quantise import QuantisedWeight, choose, from_codes
from npurt.rknpu.device.weight_store import WeightStore
from npurt.rknpu.device.weights import RkPacked
from npurt.rknpu.driver.base import Driver
from npurt.rknpu.driver.names import connection
from npurt.rknpu.driver.native.host import I8, I32

RESTART_SECONDS = 5.0  # longest time for a driver to restart


class RkDevice(ProductDevice):
    """An opened NPU.

    Args:
        name: The name in device strings.
        connect: Opens the driver; called again after a failure.
        simulated: Whether the NPU is simulated.

    Raises:
        NpurtError: The driver cannot be opened; see `detect.open_driver`.
    """

    def __init__(self, name: str, connect: Callable[[], Driver], *, simulated: bool) -> None:
        self._connect = connect
        self._weights = WeightStore(self._open_driver())
        self._numbers = itertools.count()  # numbers of weights
        self._restarts = Restarts(name, (DriverError,))
        self.caps = Caps(name, self._driver.detail, simulated)

    @property
    def _driver(self) -> Driver:
        return self._weights.driver

    # --- Weights ----------------------------------------------------------------------------------

    def reserve(self, uses: Sequence[Use]) -> None:
        """Reserve memory for products; see `Device.reserve`.

        Raises:
            DeviceFull: The buffers for products of a single row do not fit.
            DeviceLost: The NPU failed too often.
        """
        self._restarts.surviving(lambda: self._weights.reserve(tuple(uses)), self._reopen)

    def saving(self, op: MatMul, *, int16: bool = False) -> Saving:
        """Return the host's time minus the NPU's time for *op*, by the cost model."""
        return saving(op, self._driver.name, len(self._driver.spaces), int16=int16)

    def why_not(self, op: MatMul) -> str | None:
        """Return None, or why *op* cannot run: an unknown format or an empty weight."""
        if op.format not in BY_NAME:
            return f"there is no format {op.format}"
        return "it has no elements" if 0 in (op.n, op.k) else None

    def pack(self, tensor: QTensor, *, int16: bool | None = False) -> RkPacked | AdaptivePacked:
        """Quantise a weight by the cheapest scheme within the error budget, and upload it.

        If *int16* is None, rows of activations with outliers are multiplied in float16.

        Raises:
            UnsupportedOp: *tensor* is not a matrix, or its format is unknown.
            NumericsError: The weight holds NaN or infinity.
            DeviceFull: The NPU has too little memory for the weight.
            DeviceLost: The NPU failed too often.
        """
        reason = self.why_not(MatMul(1, tensor.shape[-1], tensor.shape[0], tensor.dtype))
        if tensor.ndim != 2 or tensor.transposed:
            raise UnsupportedOp(
                f"the RK3588 backend cannot pack {tensor!r}: it is not [N, K]",
                remedy="pass a 2-D weight in the file's orientation, not its .T",
            )
        if reason:
            raise UnsupportedOp(
                f"the RK3588 backend cannot pack {tensor!r}: {reason}",
                remedy="use device 'cpu' for it",
            )
        packed = self.upload(tensor, choose(tensor, int16=bool(int16)))
        adaptive = int16 is None and packed.scheme.task == "int8"
        return AdaptivePacked(packed) if adaptive else packed

    def pack_i8(self, codes: I8, scales: F32) -> RkPacked:
        """Upload int8 *codes* ``[N, K]`` with a scale for each row ``[N]``, without changes.

        Products round activations to int8 with one scale a row: W8A8, not rotated.

        Raises:
            LayoutError: Shapes or types do not fit.
            NumericsError: A scale is not finite.
            DeviceFull: The NPU has too little memory for the weight.
            DeviceLost: The NPU failed too often.
        """
        quantised = from_codes(codes, scales)
        return self.upload(QTensor(codes * scales[:, None].astype(np.float32), "f32"), quantised)

    def upload(self, tensor: QTensor, quantised: QuantisedWeight) -> RkPacked:
        """Upload a quantised weight; errors as `pack`."""
        packed = RkPacked(self, tensor, quantised, next(self._numbers))
        self._restarts.surviving(lambda: self._weights.upload(packed), self._reopen)
        return packed

    # --- Products ---------------------------------------------------------------------------------

    def matmul(self, x: F32, w: Packed, out: F32) -> None:
        """Write ``x @ w.T`` to *out*; errors as `matmuls`."""
        self.matmuls(x, [w], [out])

    def matmuls(self, x: F32, weights: Sequence[Packed], outs: Sequence[F32]) -> None:
        """Multiply x by each weight; weights with one scheme run as one job.

        Raises:
            LayoutError: Shapes or types do not fit; see `Device.matmul`.
            NumericsError: x holds NaN or infinity.
            DeviceFull: The NPU has too little memory for the results.
            DeviceLost: The NPU failed too often.
        """
        check_product(self, x, weights, outs)
        mine = [w for w in weights if isinstance(w, RkPacked)]
        if len(mine) < len(weights):
            for w, out in zip(weights, outs, strict=True):
                self._adapt(x, w, out)
            return
        work = functools.partial(multiply, self._weights, x, mine, outs)
        self._restarts.surviving(work, self._reopen)

    def _adapt(self, x: F32, w: Packed, out: F32) -> None:
        """Multiply by one weight: rows of x with outliers in float16, other rows in int8."""
        if isinstance(w, AdaptivePacked):
            for rows, packed in w.images(x, self.upload):
                part = np.empty((int(rows.sum()), w.n), np.float32)
                self.matmuls(np.ascontiguousarray(x[rows]), [packed], [part])
                out[rows] = part
        else:
            self.matmuls(x, [w], [out])

    def matmul_i8(self, a: I8, b: I8) -> I32:
        """Return the exact ``a @ b``, the NPU's integer sums; see `ExactInt8`.

        Raises:
            DeviceFull: The NPU has too little memory for the operands.
            DeviceLost: The NPU failed too often.
        """
        y = np.zeros((len(a), b.shape[1]), np.int32)
        if not (y.size and len(b)):
            return y
        packed = self.pack_i8(np.ascontiguousarray(b.T), np.ones(b.shape[1], np.float32))
        work = functools.partial(multiply_i8, self._weights, a, packed, y)
        self._restarts.surviving(work, self._reopen)
        return y

    def on_host(self, packed: Packed, threads: int) -> Packed:
        """Return *packed* for the host, which computes the same sums; see `KeepsArithmetic`."""
        assert isinstance(packed, RkPacked)
        return RkHostPacked(HostDevice(self.caps.name, threads), packed)

    def multiplied(self, x: F32, w: Packed) -> F64:
        """Return x after rotation and rounding, the parts of K side by side."""
        assert isinstance(w, RkPacked | AdaptivePacked)
        return w.quantise_input(x)

    # --- Opening and closing ----------------------------------------------------------------------

    def _open_driver(self) -> Driver:
        """Open the driver, which is closed when this device is closed or garbage-collected."""
        driver = self._connect()
        self._close = weakref.finalize(self, driver.close)
        self._close.atexit = False  # at exit the kernel closes it; other threads may still use it
        return driver

    def _reopen(self) -> None:
        """Open the driver again and upload every weight."""
        self._release()
        driver = patiently(self._open_driver, DriverError, RESTART_SECONDS)
        driver.repeats, driver.jobs = self._driver.repeats, self._driver.jobs
        self._weights.upload_again(driver)

    def restarts(self) -> int:
        """Return how often the device was lost and opened again."""
        return self._restarts.count

    def events(self) -> list[str]:
        """Return the events since the last call; see `Device.events`."""
        return self._restarts.events()

    def call_count(self) -> int:
        """Return the number of jobs that were submitted."""
        return self._driver.jobs

    def status_note(self) -> str:
        """Return a note with the number of repeated jobs, or "" if no job was repeated."""
        times, cause = self._driver.repeats
        jobs = "a job" if times == 1 else f"{times} jobs"
        return f"{self.caps.name} ran {jobs} again, the last because {cause}" if times else ""

    def close(self) -> None:
        """Release the NPU.  A second call does nothing."""
        self._restarts.close(self._release)

    def _release(self) -> None:
        """Close the driver, which frees all memory."""
        self._weights.clear()
        self._close()


def open_rknpu(name: str) -> RkDevice:
    """Open the device of a device string; see `connection`.

    Raises:
        UnknownDevice: *name* is not a device string of this backend.
    """
    system, connect = connection(name)
    full_name = name if ":" in name else f"{name}:0"
    return RkDevice(full_name, connect, simulated=system.simulated)
