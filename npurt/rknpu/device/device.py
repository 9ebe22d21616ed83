"""The RK3588 NPU as a device: weights in its memory, products as prepared jobs.

When the NPU is lost, the device opens it again and repeats the product; see `restart`.
"""

import functools
import itertools
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from npurt.device import F32, F64, MAX_ROWS, Caps, MatMul, Packed, Saving, Use, check_product
from npurt.errors import DeviceFull, DriverError, NumericsError, UnknownDevice, UnsupportedOp
from npurt.products import ProductDevice
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME
from npurt.restart import Restarts, patiently
from npurt.rknpu.device.arena import Arena, Arenas
from npurt.rknpu.device.estimate import saving
from npurt.rknpu.device.needs import FEW_ROWS, need_of, rows_within, weight_plans
from npurt.rknpu.device.product import Product
from npurt.rknpu.device.quantise import BY_NAME as SCHEMES
from npurt.rknpu.device.quantise import QuantisedWeight, Scheme, choose, from_codes, quantise_weight
from npurt.rknpu.device.weights import AdaptivePacked, PartOnNpu, RkPacked
from npurt.rknpu.driver import detect, uapi_rknpu, uapi_rocket
from npurt.rknpu.driver.base import Driver
from npurt.rknpu.driver.host import I8, I32
from npurt.rknpu.driver.system import Simulator, System

RESTART_SECONDS = 5.0  # that a driver may take to be back
MAX_PREPARED = 1024  # prepared calls
DRIVERS = {  # by what follows "rknpu:"
    "": detect.DRIVERS,
    "0": detect.DRIVERS,
    "sim": (uapi_rocket.NAME,),
    "sim-vendor": (uapi_rknpu.NAME,),
}
NAMES = tuple(f"rknpu:{which}".rstrip(":") for which in DRIVERS)  # device strings


@functools.cache
def rows_prepared(rows: int) -> int:
    """Round *rows* up to one of the few numbers of rows that products are prepared for."""
    step = 1 if rows <= 16 else 16 if rows <= 128 else 64
    return -(-rows // step) * step


class RkDevice(ProductDevice):
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
        self._arenas = Arenas(self._driver)
        self._uses: Sequence[Use] = ()
        self._evicted = False  # whether there may be weights that have no memory
        self._rows: dict[tuple[int, ...], int] = {}  # at once, of calls for which memory is short
        self._restarts = Restarts(name, (DriverError,))
        self.caps = Caps(name, self._driver.detail, simulated)

    # --- Weights ----------------------------------------------------------------------------------

    def reserve(self, uses: Sequence[Use]) -> None:
        """Keep memory for products; see `Device.reserve`.

        Raises:
            DeviceFull: There is not even room for products of single rows.
            DeviceLost: The NPU failed too often.
        """
        self._surviving(lambda: self._reserve(tuple(uses)))

    def _reserve(self, uses: Sequence[Use]) -> None:
        self._uses = uses
        self._arenas.reserve(uses)

    def saving(self, op: MatMul, *, int16: bool = False) -> Saving:
        """Compare what the cost model expects of the NPU and of its host."""
        return saving(op, self._driver.name, len(self._driver.spaces), int16=int16)

    def why_not(self, op: MatMul) -> str | None:
        """Return None, or why *op* cannot run: any shape but an empty one can."""
        if op.format not in BY_NAME:
            return f"there is no format {op.format}"
        return "a weight without elements is none" if 0 in (op.n, op.k) else None

    def pack(self, tensor: QTensor, *, int16: bool | None = False) -> RkPacked | AdaptivePacked:
        """Round a weight by the cheapest scheme within its budget, and upload it.

        With *int16* None, rows of activations that lose too much by it are multiplied in float16.

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
        packed = self.upload(tensor, choose(tensor, int16=bool(int16)))
        adaptive = int16 is None and packed.scheme.task == "int8"
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
        quantised = from_codes(codes, scales)
        return self.upload(QTensor(codes * scales[:, None].astype(np.float32), "f32"), quantised)

    def upload(self, tensor: QTensor, quantised: QuantisedWeight) -> RkPacked:
        """Upload a quantised weight; raises what `pack` raises."""
        packed = RkPacked(self, tensor, quantised, next(self._numbers))
        self._surviving(lambda: self._upload_new(packed))
        went = packed.number, packed.parts
        weakref.finalize(packed, self._gone.append, went).atexit = False
        return packed

    def _upload_new(self, packed: RkPacked) -> None:
        self._upload(packed)
        self._packed[packed.number] = packed

    def _upload(self, packed: RkPacked) -> None:
        self._free_dropped()
        self._arenas.place(packed.nbytes, functools.partial(self._upload_to, packed))

    def _upload_to(self, packed: RkPacked, arena: Arena) -> None:
        """Upload a weight; if nothing was reserved, reserve work buffers for one row first."""
        if not self._uses:
            parts = weight_plans(packed.scheme, packed.n, packed.k, len(arena.spaces))
            arena.ensure(self._driver, need_of([parts], packed.scheme.passes))
        packed.upload(arena)

    def _free_dropped(self) -> None:
        """Free weights that were garbage-collected meanwhile, perhaps during a preparation."""
        while self._gone:
            number, parts = self._gone.popleft()
            for key in [key for key in self._prepared if number in key[0]]:
                self._forget(self._prepared.pop(key))
            for part in parts:
                part.free()
            self._arenas.freed()
            self._rows.clear()

    # --- Products ---------------------------------------------------------------------------------

    def matmul(self, x: F32, w: Packed, out: F32) -> None:
        """Write ``x @ w.T`` to *out*; errors as `matmuls`."""
        self.matmuls(x, [w], [out])

    def matmuls(self, x: F32, weights: Sequence[Packed], outs: Sequence[F32]) -> None:
        """Multiply x by each weight; weights with one scheme run as one job.

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
        self._surviving(functools.partial(self._run, x, mine, outs))

    def _adapt(self, x: F32, w: Packed, out: F32) -> None:
        """Multiply by one weight: rows of x with outliers in float16, other rows in int8."""
        if isinstance(w, AdaptivePacked):
            outliers = w.outlier_rows(x)
            for rows, image in ((~outliers, _int8_of), (outliers, self._float16_of)):
                if rows.any():
                    packed = image(w)
                    part = np.empty((int(rows.sum()), w.n), np.float32)
                    self.matmuls(np.ascontiguousarray(x[rows]), [packed], [part])
                    out[rows] = part
        else:
            self.matmuls(x, [w], [out])

    def _float16_of(self, w: AdaptivePacked) -> RkPacked:
        """Return the float16 image of a weight; the first call uploads it.

        Return the int8 image when float16 or the NPU's memory cannot hold the weight.
        """
        if w.float16 is None:
            try:
                w.float16 = self.upload(w.tensor, quantise_weight(w.tensor, SCHEMES["fp16"]))
            except (NumericsError, DeviceFull):
                w.float16 = w.int8
        return w.float16

    def matmul_i8(self, a: I8, b: I8) -> I32:
        """Return ``a @ b``, exact: what the NPU computes before scales; see `ExactInt8`.

        Raises:
            DeviceFull: There is no room for the operands.
            DeviceLost: The NPU failed too often.
        """
        y = np.zeros((len(a), b.shape[1]), np.int32)
        if not (y.size and len(b)):
            return y
        packed = self.pack_i8(np.ascontiguousarray(b.T), np.ones(b.shape[1], np.float32))
        self._surviving(lambda: self._multiply_i8(a, packed, y))
        return y

    def _multiply_i8(self, a: I8, packed: RkPacked, y: I32) -> None:
        def run(first: int, end: int) -> None:
            ((product, _),) = self._take_prepared([packed], end - first)
            product.run_i8(a[first:end], y[first:end])

        self._in_steps([packed], len(a), run)

    def _run(self, x: F32, weights: list[RkPacked], outs: Sequence[F32]) -> None:
        def run(first: int, end: int) -> None:
            if end - first == len(x):
                self._run_at_once(x, weights, outs)
            else:
                rows = slice(first, end)
                self._run_at_once(x[rows], weights, [out[rows] for out in outs], first)

        self._in_steps(weights, len(x), run)

    def _in_steps(
        self, weights: list[RkPacked], rows: int, run: Callable[[int, int], None]
    ) -> None:
        """Call *run* for as many of *rows* at a time as the job's time limit and memory allow."""
        if self._evicted:
            self._reupload(weights)
        step = self._most_rows(weights, rows)
        while True:
            try:
                for start in range(0, rows, step):
                    run(start, min(start + step, rows))
                return
            except DeviceFull:
                step = prepared_below(min(step, rows))
                if not step:
                    raise
                self._rows[tuple([w.number for w in weights])] = step

    def _reupload(self, weights: list[RkPacked]) -> None:
        """Upload the weights that lost their memory; there may be room again."""
        self._arenas.freed()
        for w in weights:
            if not w.parts:
                self._upload(w)

    def _most_rows(self, weights: list[RkPacked], rows: int) -> int:
        """Return how many of *rows* to multiply at once."""
        short = self._rows and self._rows.get(tuple([w.number for w in weights]))
        if short:
            return short
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
        """Return the prepared products of a call; drop the least recently used of too many."""
        if self._gone:
            self._free_dropped()
        key = tuple([w.number for w in weights]), rows
        prepared = self._prepared.get(key)
        if prepared is None:
            while len(self._prepared) >= MAX_PREPARED:
                self._forget(self._prepared.popitem(last=False)[1])
            prepared = self._prepared[key] = self._prepare(weights, rows)
        self._prepared.move_to_end(key)
        return prepared

    def _prepare(self, weights: list[RkPacked], rows: int) -> "Prepared":
        """Make a product for each scheme and arena, with the indices of its weights."""
        prepared: Prepared = []
        try:
            for arena, which in _by_arena(weights):
                together = [weights[i] for i in which]
                product = Product(self._driver, together, rows, arena, self._make_room)
                prepared.append((product, which))
        except BaseException:
            self._forget(prepared)
            raise
        return prepared

    def _forget(self, prepared: "Prepared") -> None:
        for product, _ in prepared:
            product.free()

    def _make_room(self) -> bool:
        """Drop the least recently used call; return False when there is none."""
        if not self._prepared:
            return False
        self._forget(self._prepared.popitem(last=False)[1])
        return True

    def multiplied(self, x: F32, w: Packed) -> F64:
        """Return x as the NPU sees it: rotated and rounded, the parts of K side by side."""
        assert isinstance(w, RkPacked | AdaptivePacked)
        return w.quantise_input(x)

    # --- Life -------------------------------------------------------------------------------------

    def _open_driver(self) -> None:
        """Open the driver; it is closed with this device, or when that is garbage-collected."""
        self._driver = self._connect()
        self._close = weakref.finalize(self, self._driver.close)
        self._close.atexit = False  # the kernel closes it, whatever other threads still do

    def _surviving(self, work: Callable[[], None]) -> None:
        """Do *work*, again if the NPU is lost meanwhile; errors as `Restarts.surviving`."""
        self._restarts.surviving(work, self._reopen)

    def _reopen(self) -> None:
        """Open the driver again and upload every weight."""
        self._let_go()
        repeats = self._driver.repeats
        patiently(self._open_driver, DriverError, RESTART_SECONDS)
        self._driver.repeats = repeats
        self._arenas = Arenas(self._driver)
        self._evicted = True
        try:
            self._arenas.reserve(self._uses)
            for _, packed in sorted(self._packed.items()):
                self._upload(packed)
        except DeviceFull:
            return  # there is less memory than before: it is said when a weight without is used
        self._evicted = False

    def events(self) -> list[str]:
        """Return the events since the last call; see `Device.events`."""
        return self._restarts.events()

    def status_note(self) -> str:
        """Return a note on how often jobs were repeated, or "": a slow board may be a flaky one."""
        times, cause = self._driver.repeats
        jobs = "a job" if times == 1 else f"{times} jobs"
        return f"{self.caps.name} ran {jobs} again, the last because {cause}" if times else ""

    def close(self) -> None:
        """Release the NPU.  A second call does nothing."""
        self._restarts.close(self._let_go)

    def _let_go(self) -> None:
        """Close the driver, and with it all memory."""
        for packed in self._packed.values():
            packed.parts.clear()
        self._gone.clear()
        self._prepared.clear()
        self._rows.clear()
        self._arenas.clear()
        self._close()


Prepared = list[tuple[Product, list[int]]]  # of one call: products, and which weights each has


def _int8_of(w: AdaptivePacked) -> RkPacked:
    return w.int8


def prepared_below(rows: int) -> int:
    """Return the largest prepared number of rows up to half of *rows*, or 0."""
    return next((n for n in range(rows // 2, 0, -1) if rows_prepared(n) == n), 0)


def _by_arena(weights: Sequence[RkPacked]) -> Iterator[tuple[Arena, list[int]]]:
    """Yield the weights that one job can multiply: those with one arena and one scheme."""
    for _, which in _by_scheme(weights):
        for arena in dict.fromkeys([weights[i].arena for i in which]):
            assert arena, "a weight without memory"
            yield arena, [i for i in which if weights[i].arena is arena]


def _by_scheme(weights: Sequence[RkPacked]) -> Iterator[tuple[Scheme, list[int]]]:
    """Yield each scheme with the indices of the weights that have it."""
    for scheme in dict.fromkeys(w.scheme for w in weights):
        yield scheme, [i for i, w in enumerate(weights) if w.scheme is scheme]


def _run_padded(product: Product, x: F32, outs: Sequence[F32], first: int) -> None:
    """Run a product that was prepared for more rows than x has: pad x with zeros."""
    padded = np.zeros((product.rows, x.shape[1]), np.float32)
    padded[: len(x)] = x
    wide = [np.empty((product.rows, out.shape[1]), np.float32) for out in outs]
    product.run(padded, wide, first)
    for out, result in zip(outs, wide, strict=True):
        out[:] = result[: len(x)]


def connection(name: str) -> tuple[System, Callable[[], Driver]]:
    """Return the system (or simulator) of a device string, and a function that opens its driver.

    These are ``rknpu``, ``rknpu:0``, ``rknpu:sim`` (mainline's driver) and ``rknpu:sim-vendor``.

    Raises:
        UnknownDevice: There is no such device.
    """
    kind, _, which = name.partition(":")
    drivers = DRIVERS.get(which)
    if kind != "rknpu":
        raise UnknownDevice(
            f"{name!r} is no NPU of an RK3588", remedy=f"use {', '.join(NAMES[:-1])} or {NAMES[-1]}"
        )
    if drivers is None:
        raise UnknownDevice(
            f"{name!r} is no device: an RK3588 has one NPU",
            remedy=f"use {', '.join(NAMES[:-1])} or {NAMES[-1]}",
        )
    system = Simulator() if which.startswith("sim") else System()
    return system, functools.partial(detect.open_driver, system, drivers)


def open_rknpu(name: str) -> RkDevice:
    """Open the device of a device string; see `connection`.

    Raises:
        UnknownDevice: There is no such device.
    """
    system, connect = connection(name)
    full_name = name if ":" in name else f"{name}:0"
    return RkDevice(full_name, connect, simulated=system.simulated)
