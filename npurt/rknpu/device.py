"""The RK3588 NPU as a device: weights in its memory, products as prepared jobs.

An NPU that is lost is opened anew and the product repeated; see `restart`.
"""

import functools
import itertools
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from npurt.device import F32, F64, Caps, Device, MatMul, Packed, check_product
from npurt.errors import DeviceFull, DriverError, NumericsError, UnknownDevice, UnsupportedOp
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME
from npurt.restart import Restarts, patiently
from npurt.rknpu import detect, uapi_rknpu, uapi_rocket
from npurt.rknpu.driver import Driver
from npurt.rknpu.host import I8, I32
from npurt.rknpu.memory import Buffer
from npurt.rknpu.numerics import BY_NAME as SCHEMES
from npurt.rknpu.numerics import Rounded, Scheme, best, given, round_weight
from npurt.rknpu.product import FEW_ROWS, Product, rows_within
from npurt.rknpu.proof import Role
from npurt.rknpu.system import Simulator, System
from npurt.rknpu.weights import AdaptivePacked, PartOnNpu, RkPacked

RESTART_SECONDS = 5.0  # that a driver may take to be back
KEPT = 1024  # prepared calls
MAX_ROWS = 512  # of one product; jobs that take long have fewer
SMALLEST_BUFFER = 4096
DRIVERS = {  # by what follows "rknpu:"
    "": detect.DRIVERS,
    "0": detect.DRIVERS,
    "sim": (uapi_rocket.NAME,),
    "sim-vendor": (uapi_rknpu.NAME,),
}


@functools.cache
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
        self._open_driver()
        self._numbers = itertools.count()
        self._packed: weakref.WeakValueDictionary[int, RkPacked] = weakref.WeakValueDictionary()
        self._gone: deque[tuple[int, list[PartOnNpu]]] = deque()  # weights that nobody has any more
        self._prepared: OrderedDict[tuple[tuple[int, ...], int], Prepared] = OrderedDict()
        self._buffers: dict[tuple[str, int, int], Buffer] = {}
        self._restarts = Restarts(name, (DriverError,))
        self._lock = threading.RLock()
        self.caps = Caps(name, self._driver.detail, simulated)

    # --- Weights ----------------------------------------------------------------------------------

    def why_not(self, op: MatMul) -> str | None:
        """Return None, or why *op* cannot run: any shape can."""
        if op.format not in BY_NAME:
            return f"there is no format {op.format}"
        return "a weight without elements is none" if 0 in (op.n, op.k) else None

    def pack(self, tensor: QTensor, *, fine: bool | None = False) -> RkPacked | AdaptivePacked:
        """Round a weight by the cheapest scheme within its budget, and upload it.

        With *fine* None, rows of activations that lose too much by it are multiplied in float16.

        Raises:
            UnsupportedOp: It is not a matrix.
            NumericsError: It holds NaN or infinity.
            DeviceFull: There is no room for it.
            DeviceLost: The NPU failed too often.
        """
        reason = self.why_not(MatMul(1, tensor.shape[-1], tensor.shape[0], tensor.dtype))
        if tensor.ndim != 2 or tensor.transposed:
            raise UnsupportedOp(
                f"the RK3588 backend cannot pack {tensor!r}: it is not [N, K]",
                remedy="pass a 2-D weight as it is in the file, not its .T",
            )
        if reason:
            raise UnsupportedOp(
                f"the RK3588 backend cannot pack {tensor!r}: {reason}",
                remedy="use device 'cpu' for it",
            )
        packed = self.upload(tensor, best(tensor, fine=bool(fine)))
        adaptive = fine is None and packed.scheme.task == "int8"
        return AdaptivePacked(packed) if adaptive else packed

    def pack_i8(self, codes: I8, scales: F32) -> RkPacked:
        """Upload int8 *codes* ``[N, K]`` with a scale for each row ``[N]``, as they are.

        Products round activations to int8 with one scale a row: W8A8, not rotated.

        Raises:
            LayoutError: Shapes or types do not fit.
            NumericsError: A scale is not finite.
            DeviceFull: There is no room for it.
            DeviceLost: The NPU failed too often.
        """
        rounded = given(codes, scales)
        return self.upload(QTensor(codes * scales[:, None].astype(np.float32), "f32"), rounded)

    def upload(self, tensor: QTensor, rounded: Rounded) -> RkPacked:
        """Put a weight that was rounded on the NPU; errors as `pack`."""
        packed = RkPacked(self, tensor, rounded, next(self._numbers))
        with self._lock:
            self._restarts.surviving(lambda: self._upload(packed), self._reopen)
            self._packed[packed.number] = packed
        went = packed.number, packed.parts
        weakref.finalize(packed, self._gone.append, went).atexit = False
        return packed

    def _upload(self, packed: RkPacked) -> None:
        self._tidy()
        packed.upload(self._driver.spaces)

    def _tidy(self) -> None:
        """Free what went: later, as an object may go at any time, even while a job is prepared."""
        while self._gone:
            number, parts = self._gone.popleft()
            for key in [key for key in self._prepared if number in key[0]]:
                self._forget(self._prepared.pop(key))
            for part in parts:
                part.free()

    # --- Products ---------------------------------------------------------------------------------

    def matmul(self, x: F32, w: Packed, out: F32) -> None:
        """Write ``x @ w.T`` to *out*; errors as `matmuls`."""
        self.matmuls(x, [w], [out])

    def matmuls(self, x: F32, weights: Sequence[Packed], outs: Sequence[F32]) -> None:
        """Multiply x by each weight; those that are rounded alike run as one job.

        Raises:
            LayoutError: They do not fit; see `Device.matmul`.
            NumericsError: x holds NaN or infinity.
            DeviceFull: There is no room for the results.
            DeviceLost: The NPU failed too often.
        """
        check_product(self, x, weights, outs)
        mine = [w for w in weights if isinstance(w, RkPacked)]
        if len(mine) < len(weights):
            for w, out in zip(weights, outs, strict=True):
                self._adapt(x, w, out)
            return
        with self._lock:
            self._restarts.surviving(functools.partial(self._run, x, mine, outs), self._reopen)

    def _adapt(self, x: F32, w: Packed, out: F32) -> None:
        """Multiply by one weight, each row of x in the precision that it wants."""
        if isinstance(w, AdaptivePacked):
            fine = w.fine_rows(x)
            for rows, packed in ((~fine, w.coarse), (fine, self._fine(w) if fine.any() else None)):
                if packed and rows.any():
                    part = np.empty((int(rows.sum()), w.n), np.float32)
                    self.matmuls(np.ascontiguousarray(x[rows]), [packed], [part])
                    out[rows] = part
        else:
            self.matmuls(x, [w], [out])

    def _fine(self, w: AdaptivePacked) -> RkPacked:
        """Return a weight in float16, uploaded when that is first asked for.

        It is the coarse one where float16 cannot hold it, or the NPU's memory.
        """
        if w.fine is None:
            try:
                w.fine = self.upload(w.tensor, round_weight(w.tensor, SCHEMES["fp16"]))
            except (NumericsError, DeviceFull):
                w.fine = w.coarse
        return w.fine

    def matmul_i8(self, a: I8, b: I8) -> I32:
        """Return ``a @ b``, exact: what the NPU computes before scales; see `Device.matmul_i8`.

        Raises:
            DeviceFull: There is no room for the operands.
            DeviceLost: The NPU failed too often.
        """
        y = np.zeros((len(a), b.shape[1]), np.int32)
        if not (y.size and len(b)):
            return y
        packed = self.pack_i8(np.ascontiguousarray(b.T), np.ones(b.shape[1], np.float32))
        with self._lock:
            self._restarts.surviving(lambda: self._multiply_i8(a, packed, y), self._reopen)
        return y

    def _multiply_i8(self, a: I8, packed: RkPacked, y: I32) -> None:
        step = self._most_rows([packed], len(a))
        for start in range(0, len(a), step):
            rows = slice(start, start + step)
            ((product, _),) = self._take_prepared([packed], len(a[rows]))
            product.run_i8(a[rows], y[rows])

    def _run(self, x: F32, weights: list[RkPacked], outs: Sequence[F32]) -> None:
        step = self._most_rows(weights, len(x))
        if 0 < len(x) <= step:
            self._run_at_once(x, weights, outs)
            return
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            self._run_at_once(x[rows], weights, [out[rows] for out in outs], start)

    def _most_rows(self, weights: list[RkPacked], rows: int) -> int:
        """Return how many of *rows* to multiply at once, so that no job takes too long."""
        if rows <= FEW_ROWS:
            return FEW_ROWS
        return min(
            rows_within(
                self._driver.planned_s,
                tuple(part.plan for i in which for part in weights[i].parts),
                scheme.passes,
                MAX_ROWS,
            )
            for scheme, which in _by_scheme(weights)
        )

    def _run_at_once(
        self, x: F32, weights: list[RkPacked], outs: Sequence[F32], first: int = 0
    ) -> None:
        """Multiply at most `_most_rows`; errors count them from *first*."""
        for product, which in self._take_prepared(weights, rows_prepared(len(x))):
            results = outs if len(which) == len(outs) else [outs[i] for i in which]
            if product.rows == len(x):
                product.run(x, results, first)
            else:
                _run_padded(product, x, results, first)

    def _take_prepared(self, weights: list[RkPacked], rows: int) -> "Prepared":
        """Return the products of a call; the least recently used of too many makes room."""
        if self._gone:
            self._tidy()
        key = tuple([w.number for w in weights]), rows
        prepared = self._prepared.get(key)
        if prepared is None:
            while len(self._prepared) >= KEPT:
                self._forget(self._prepared.popitem(last=False)[1])
            prepared = self._prepared[key] = list(self._prepare(weights, rows))
        self._prepared.move_to_end(key)
        return prepared

    def _prepare(self, weights: list[RkPacked], rows: int) -> Iterator[tuple[Product, list[int]]]:
        """Yield a product for each scheme, and which of the weights it has."""
        for _, which in _by_scheme(weights):
            yield Product(self._driver, [weights[i] for i in which], rows, self._take), which

    def _forget(self, prepared: "Prepared") -> None:
        for product, _ in prepared:
            product.free()

    def _take(self, use: str, core: int, nbytes: int) -> Buffer:
        """Return the buffer of that use and size class: products take turns with it."""
        size = max(SMALLEST_BUFFER, 1 << (nbytes - 1).bit_length())
        if (use, core, size) not in self._buffers:
            role = Role.INPUT if use == "A" else Role.OUTPUT
            space = self._driver.spaces[core]
            self._buffers[use, core, size] = space.alloc(size, role, f"{use}, core {core}")
        return self._buffers[use, core, size]

    def multiplied(self, x: F32, w: Packed) -> F64:
        """Return x as the NPU sees it: rotated and rounded, the parts of K side by side."""
        assert isinstance(w, RkPacked | AdaptivePacked)
        return w.rounded(x)

    # --- Life -------------------------------------------------------------------------------------

    def _open_driver(self) -> None:
        """Open the driver, which is closed with this device, or when nobody has that any more."""
        self._driver = self._connect()
        self._close = weakref.finalize(self, self._driver.close)
        self._close.atexit = False  # the kernel closes it, whatever other threads still do

    def _reopen(self) -> None:
        """Open the driver again and upload every weight."""
        self._let_go()
        repeats = self._driver.repeats
        patiently(self._open_driver, DriverError, RESTART_SECONDS)
        self._driver.repeats = repeats
        for packed in list(self._packed.values()):
            packed.upload(self._driver.spaces)

    def news(self) -> list[str]:
        """Return what happened since the last call; see `Device.news`."""
        return self._restarts.news()

    def remark(self) -> str:
        """Return how often jobs were run again, if they were: a board that is slow may be flaky."""
        times, cause = self._driver.repeats
        jobs = "a job" if times == 1 else f"{times} jobs"
        return f"{self.caps.name} ran {jobs} again, the last because {cause}" if times else ""

    def close(self) -> None:
        """Release the NPU.  A second call does nothing."""
        with self._lock:
            self._restarts.closed = True
            self._let_go()

    def _let_go(self) -> None:
        """Close the driver, and with it all memory."""
        for packed in self._packed.values():
            packed.parts.clear()
        self._gone.clear()
        self._prepared.clear()
        self._buffers.clear()
        self._close()


Prepared = list[tuple[Product, list[int]]]  # of one call: products, and which weights each has


def _by_scheme(weights: Sequence[RkPacked]) -> Iterator[tuple[Scheme, list[int]]]:
    """Yield each scheme, and which of the weights have it."""
    for scheme in dict.fromkeys(w.scheme for w in weights):
        yield scheme, [i for i, w in enumerate(weights) if w.scheme is scheme]


def _run_padded(product: Product, x: F32, outs: Sequence[F32], first: int) -> None:
    """Run a product that was prepared for more rows than x has."""
    padded = np.zeros((product.rows, x.shape[1]), np.float32)
    padded[: len(x)] = x
    wide = [np.empty((product.rows, out.shape[1]), np.float32) for out in outs]
    product.run(padded, wide, first)
    for out, result in zip(outs, wide, strict=True):
        out[:] = result[: len(x)]


def way(name: str) -> tuple[System, Callable[[], Driver]]:
    """Return the kernel that a device string means, and what opens its driver.

    These are ``rknpu``, ``rknpu:0``, ``rknpu:sim`` (mainline's driver) and ``rknpu:sim-vendor``.

    Raises:
        UnknownDevice: There is no such device.
    """
    kind, _, which = name.partition(":")
    drivers = DRIVERS.get(which)
    if kind != "rknpu" or drivers is None:
        raise UnknownDevice(
            f"{name!r} is no device: an RK3588 has one NPU",
            remedy="use rknpu, rknpu:0, rknpu:sim or rknpu:sim-vendor",
        )
    system = Simulator() if which.startswith("sim") else System()
    return system, functools.partial(detect.open_driver, system, drivers)


def open_rknpu(name: str) -> RkDevice:
    """Open what `way` knows.

    Raises:
        UnknownDevice: There is no such device.
    """
    system, connect = way(name)
    full_name = name if ":" in name else f"{name}:0"
    return RkDevice(full_name, connect, simulated=system.simulated)
