"""The Hexagon CDSP as a device: weights in shared memory, products in batches of ops.

When the DSP process dies or does not answer, it is opened again and the batch is repeated: see
`npurt.restart`.
"""

import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from npurt.delta import DeltaError, DeltaNet, DeltaNets, require_delta
from npurt.device import F32, F64, FLUSHED, Caps, MatMul, Packed, check_product
from npurt.errors import (
    DeviceFull,
    DeviceLost,
    DeviceNotFound,
    DeviceTimeout,
    DriverError,
    LayoutError,
    UnsupportedOp,
)
from npurt.hexagon.connect import probe
from npurt.hexagon.connect.connection import Connection
from npurt.hexagon.connect.worker import connect
from npurt.hexagon.device import delta_state
from npurt.hexagon.device.batch import Batch, Weight
from npurt.hexagon.device.delta_state import HexagonState
from npurt.hexagon.device.session_memory import SessionMemory
from npurt.hexagon.fastrpc.caller import refuse_fork
from npurt.hexagon.fastrpc.lib import simulator
from npurt.hexagon.fastrpc.names import parse
from npurt.hexagon.fastrpc.rpcmem import LARGEST, U8, Arena, Slice
from npurt.hexagon.layout import delta, error_bound, formats, images, quantise
from npurt.hexagon.session import messages
from npurt.hexagon.session.transport import TransportName
from npurt.products import ProductDevice
from npurt.quant.tensor import QTensor
from npurt.restart import Restarts, patiently
from npurt.settings import HEXAGON_TRANSPORT, HEXAGON_WORKER, deadline, read

RESTART_SECONDS = 10  # that a DSP may take to be back
FULL_SECONDS = 0.5  # in which memory of a process that has just ended is there again
GIVEN_UP = "run `npurt doctor`; if products of one model kill it, report which"

I8 = npt.NDArray[np.int8]
T = TypeVar("T", bound="HexagonPacked")
Parts = list[tuple[Batch, slice]]  # of one product: batches, and which of the weights each has


class HexagonPacked(Packed):
    """A weight in shared memory, in the layout of the DSP's kernels.

    Attributes:
        number: Never used twice.
        group: Columns of activations that share a scale; 0: all.
        batches: Prepared ones that begin with this weight, by the numbers of all in them.
    """

    device: "HexagonDevice"
    group = quantise.BLOCK

    def __init__(self, device: "HexagonDevice", tensor: QTensor, number: int, kind: str) -> None:
        self.device = device
        self.tensor = tensor
        self.format = formats.BY_NAME[kind]
        self.number = number
        self.batches: dict[tuple[int, ...], Parts] = {}
        self._finalizer: weakref.finalize[..., HexagonPacked] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the image."""
        return images.image_bytes(self.format, self.n, self.k)

    def put(self, memory: SessionMemory, arena: Arena, part: Slice) -> None:
        """Write the image to *part*, which goes back to *arena* when this object goes."""
        if self._finalizer:
            self._finalizer.detach()  # memory of a session that is no more
        self._finalizer = weakref.finalize(self, arena.free, part)
        self.memory, self.part, self.batches = memory, part, {}
        self._write(part.array)
        memory.wrote(part)

    def _write(self, image: U8) -> None:
        images.pack(self.tensor, image)

    @property
    def weight(self) -> Weight:
        """The description of this weight for a batch."""
        return Weight(self.part, self.n, self.k, self.format.number)

    def multiplied(self, rows: slice) -> F64:
        """Return the values that the kernels multiply by: scales are rounded to integers."""
        return images.multiplied(self.part.array, self.format, self.n, self.k, rows)

    def error(self, rows: slice) -> F64:
        """Return the standard error of the kernels' rounding; see `error_bound`."""
        held = images.unpack(self.part.array, self.format, self.n, self.k, rows)
        return error_bound.error(held, self.format)

    def floor(self, rows: slice) -> F64:
        """Return the further error of results: those below 2^-126 become 0."""
        return np.full(len(range(self.n)[rows]), FLUSHED)

    def peak(self, rows: slice, x: F64) -> F64:
        """Return a bound of the results; integers before them cannot overflow."""
        most: F64 = abs(x) @ abs(self.multiplied(rows)).T
        return most


class HexagonInt8(HexagonPacked):
    """int8 codes with one scale a row, for activations with one scale a row."""

    group = 0

    def __init__(self, device: "HexagonDevice", codes: I8, scales: F32, number: int) -> None:
        values = codes * scales[:, None].astype(np.float32)
        super().__init__(device, QTensor(values, "f32"), number, "i8")
        self._codes, self._scales = codes, scales

    def _write(self, image: U8) -> None:
        images.pack_i8(self._codes, self._scales, image)


def why_not(op: MatMul, arch: int) -> str | None:
    """Return None, or the first rule that *op* breaks on a Hexagon v*arch*."""
    fmt = formats.BY_NAME.get(op.format)
    if fmt is None:
        return f"there is no kernel for {op.format}"
    if fmt.arch > arch:
        return f"{op.format} needs a Hexagon v{fmt.arch}, and this is a v{arch}"
    if not op.n or not op.k:
        return "it has no elements"
    if op.k % quantise.BLOCK or op.k > messages.MAX_K:
        return f"K must be a multiple of {quantise.BLOCK} and at most {messages.MAX_K}"
    if op.n > messages.MAX_N:
        return f"N is more than {messages.MAX_N}"
    if images.image_bytes(fmt, op.n, op.k) > LARGEST:
        return f"it takes more than {LARGEST} bytes, the largest block that can be shared"
    return None


class HexagonDevice(ProductDevice, DeltaNets):
    """An opened DSP.

    Args:
        name: What it is called in device strings.
        connection: How to reach it; used again after a failure and for each further session.

    Raises:
        NpurtError: It cannot be opened; see `Session.open`.
    """

    def __init__(self, name: str, connection: Connection) -> None:
        self._process = os.getpid()
        self._connection = connection
        self._sessions: list[SessionMemory] = []
        self._packed: weakref.WeakSet[HexagonPacked] = weakref.WeakSet()
        self._numbers = itertools.count()
        self._states: weakref.WeakSet[HexagonState] = weakref.WeakSet()  # of delta nets
        self._restarts = Restarts(name, (DeviceLost, DeviceTimeout), GIVEN_UP)
        self._packets = 0  # of sessions that are closed
        self._lock = threading.RLock()
        self._surviving(self._open_first)
        first = self._sessions[0].transport
        self._info = first.info
        self.caps = Caps(name, self._describe(first.simulated), first.simulated)

    def _describe(self, simulated: bool) -> str:
        info, connection = self._info, self._connection
        hexagon = "simulated Hexagon" if simulated else "Hexagon"
        vtcm = f"{info.vtcm_bytes >> 10} KiB VTCM" if info.vtcm_bytes else "no VTCM"
        transport = connection.transport + (", worker process" if connection.worker else "")
        return f"{hexagon} v{info.arch}, {info.threads} threads, {vtcm}, {transport}"

    def _open_first(self) -> None:
        """Open a session unless a restart has done so; try twice where memory is short."""
        if not self._sessions:
            try:
                self._sessions.append(self._open_session())
            except DeviceFull:
                time.sleep(FULL_SECONDS)
                self._sessions.append(self._open_session())

    def _open_session(self) -> SessionMemory:
        connection = self._connection  # the memory must not keep this device, which keeps it
        transport = connect(connection)
        try:
            return SessionMemory(transport, lambda: probe.capacity(connection))
        except BaseException:
            transport.close()
            raise

    # --- Weights ----------------------------------------------------------------------------------

    def why_not(self, op: MatMul) -> str | None:
        """Return None, or the first rule that *op* breaks."""
        return why_not(op, self._info.arch)

    def pack(self, tensor: QTensor, *, int16: bool | None = False) -> HexagonPacked:
        """Lay out a weight and upload it; activations have one precision, whatever *int16* says.

        Raises:
            UnsupportedOp: There is no kernel for it.
            DeviceFull: No session has room for it.
            DeviceLost: The device died too often.
        """
        if tensor.ndim != 2 or tensor.transposed:
            raise LayoutError(
                f"a weight is 2-D, [N, K] as in the file, not {tensor!r}",
                remedy="pass the tensor itself, not its .T; take experts one by one",
            )
        n, k = tensor.shape
        reason = self.why_not(MatMul(1, k, n, tensor.dtype))
        if reason:
            raise UnsupportedOp(
                f"{self.caps.name} cannot pack {tensor!r}: {reason}",
                remedy="use device 'cpu' for it, or requantise it",
            )
        return self._upload(HexagonPacked(self, tensor, next(self._numbers), tensor.dtype))

    def pack_i8(self, codes: I8, scales: F32) -> HexagonPacked:
        """Lay out and upload int8 *codes* ``[N, K]`` with a scale for each row.

        Products round activations to int8 with one scale a row: W8A8.

        Raises:
            LayoutError: K is not a multiple of 32, or shapes do not fit.
            DeviceFull: No session has room for it.
            DeviceLost: The device died too often.
        """
        return self._upload(HexagonInt8(self, codes, scales, next(self._numbers)))

    def _upload(self, packed: T) -> T:
        with self._lock:
            self._surviving(lambda: self._place(packed))
            self._packed.add(packed)
        return packed

    def _place(self, packed: HexagonPacked) -> None:
        for memory in self._with_room():
            found = memory.allocate(packed.nbytes)
            if found:
                packed.put(memory, *found)
                return
        raise DeviceFull(
            f"{self.caps.name} has no room for {packed.nbytes} bytes more",
            remedy="use a smaller model, or close other programs that use the DSP",
            call="pack",
            code=0,
        )

    def _with_room(self) -> Iterator[SessionMemory]:
        """Yield the open sessions, and then a new one if the DSP allows it."""
        yield from self._settled()
        if self._connection.session is None:
            try:
                self._sessions.append(self._open_session())
            except (DeviceNotFound, DriverError):
                return
            yield self._sessions[-1]

    # --- Products ---------------------------------------------------------------------------------

    def matmul(self, x: F32, w: Packed, out: F32) -> None:
        """Write ``x @ w.T`` to *out*; errors as `matmuls`."""
        self.matmuls(x, [w], [out])

    def matmuls(self, x: F32, weights: Sequence[Packed], outs: Sequence[F32]) -> None:
        """Write the products of x with all weights to *outs*: one call where they fit one batch.

        Raises:
            LayoutError: They do not fit; see `Device.matmul`.
            DeviceLost: The device died too often.
            NumericsError: *x* holds NaN or infinity.
        """
        check_product(self, x, weights, outs, strided=True)
        with self._lock:
            self._surviving(lambda: self._multiply(x, weights, outs))

    def _multiply(self, x: F32, weights: Sequence[Any], outs: Sequence[F32]) -> None:
        self._settled()
        for batch, which in self._parts(weights):
            if 0 < len(x) <= batch.rows:
                batch.run(x, outs[which])
                continue
            calls = max(1, -(-len(x) // batch.rows))
            step = max(1, -(-len(x) // calls))  # all as long, so that they use the same memory
            for start in range(0, len(x), step):
                rows = slice(start, start + step)
                batch.run(x[rows], [out[rows] for out in outs[which]])

    def _parts(self, weights: Sequence[HexagonPacked]) -> Parts:
        """Return the batches for *weights*, kept with the first of them."""
        key = tuple([w.number for w in weights])
        known = weights[0].batches
        if key not in known:
            known[key] = list(self._split(weights))
        return known[key]

    def _split(self, weights: Sequence[HexagonPacked]) -> Iterator[tuple[Batch, slice]]:
        """Make a batch for each run of weights of one session and one kind of activations."""
        start = 0
        for (_, group), members in itertools.groupby(weights, lambda w: (id(w.memory), w.group)):
            run = list(members)
            end = start + len(run)
            yield Batch(run[0].memory, [w.weight for w in run], group), slice(start, end)
            start = end

    def multiplied(self, x: F32, w: Packed) -> F64:
        """Return x as the kernels see it: rounded to int8, one scale for every group."""
        assert isinstance(w, HexagonPacked)
        return quantise.multiplied(x, w.group)

    def magnitudes(self, x: F32, w: Packed) -> F64:
        """Return the factors that the kernels' rounding is proportional to; see `error_bound`."""
        assert isinstance(w, HexagonPacked)
        return error_bound.magnitudes(quantise.quantise(x, w.group), w.group)

    # --- Gated delta nets -------------------------------------------------------------------------

    def why_not_delta(self, net: DeltaNet) -> str | None:
        """Return None, or the first rule that *net* breaks."""
        return delta_state.why_not(net)

    @property
    def delta_error(self) -> DeltaError:
        """The error of a row: at least 9 bits below its greatest element are read."""
        return DeltaError(delta.ERROR, delta.LEAST)

    def delta_state(self, net: DeltaNet) -> HexagonState:
        """Return the state of *net*, which advances in integers (docs/decisions/011).

        Its `advance` raises what `delta_net` does.

        Raises:
            UnsupportedOp: `why_not_delta` has a reason against it.
        """
        require_delta(self, net)
        state = HexagonState(self._on_session, self._lock, net)
        with self._lock:
            self._states.add(state)
        return state

    def delta_net(self, net: DeltaNet) -> None:
        """Run *net* on the DSP; its state changes only when the run succeeds.

        Raises:
            UnsupportedOp: `why_not_delta` has a reason against it.
            DeviceFull: There is no room for its state.
            DeviceLost: The device died too often.
            NumericsError: *net* holds NaN or infinity.
        """
        state = self.delta_state(net)
        state.advance(net)
        net.state[...] = state.read()

    def _on_session(self, work: Callable[[SessionMemory], None]) -> None:
        """Do *work* with the first session, which has all delta nets; repeat it after a restart."""
        with self._lock:
            self._surviving(lambda: work(self._settled()[0]))

    def _settled(self) -> list[SessionMemory]:
        """Return the sessions after calls that Ctrl-C interrupted have ended."""
        for memory in self._sessions:
            memory.transport.settle()
        return self._sessions

    # --- Recovery ---------------------------------------------------------------------------------

    def _surviving(self, work: Callable[[], None]) -> None:
        """Do *work*, again if the DSP dies meanwhile; errors as `Restarts.surviving`."""
        refuse_fork(self._process, "a product")
        self._restarts.surviving(work, self._reopen)

    def _reopen(self) -> None:
        """Open the device again and upload all weights."""
        self._release()
        self._demote()
        self._sessions.append(patiently(self._open_session, DeviceLost, RESTART_SECONDS))
        for packed in sorted(self._packed, key=lambda p: p.number):
            self._place(packed)

    def _demote(self) -> None:
        """After a failure of dspqueue, use invoke, now and in later processes."""
        if self._connection.transport == TransportName.DSPQUEUE:
            probe.forget_queue(self._connection)
            self._connection = replace(self._connection, transport=TransportName.INVOKE)

    # --- Accounts ---------------------------------------------------------------------------------

    def packets(self) -> int:
        """Return the packets that the DSP executed so far; 0 where nothing counts them."""
        return self._packets + sum(memory.transport.packets() for memory in self._sessions)

    def events(self) -> list[str]:
        """Return what happened since the last call; see `Device.events`."""
        return self._restarts.events()

    def close(self) -> None:
        """Release sessions and memory.  A second call does nothing."""
        with self._lock:
            self._restarts.closed = True
            self._release()

    def _release(self) -> None:
        self._packets = self.packets()
        for state in self._states:
            state.leave()
        for memory in self._sessions:
            memory.transport.close()
        self._sessions.clear()


def open_hexagon(text: str) -> HexagonDevice:
    """Open the device of a device string: ``hexagon[:INDEX[/SESSION]]`` or ``hexagon:sim[-vNN]``.

    Raises:
        DeviceNotFound: *text* is no such string, or there is no such device.
        DriverError: It cannot be opened; the message says why.
        SettingError: A setting makes no sense.
    """
    name = parse(text)
    connection = Connection(
        library=simulator() if name.simulated else "",
        domain=name.domain,
        session=name.session,
        transport=read(HEXAGON_TRANSPORT, str),
        worker=bool(read(HEXAGON_WORKER, int)),
        deadline=deadline(),
        simulate=f"arch=v{name.arch}" if name.arch else "",
    )
    if connection.transport == TransportName.DSPQUEUE and not probe.queue_works(connection):
        connection = replace(connection, transport=TransportName.INVOKE)
    return HexagonDevice(name.text, connection)
