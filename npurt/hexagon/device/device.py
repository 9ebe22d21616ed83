"""The Hexagon CDSP as a device: weights in shared memory, products in batches of ops.

When the DSP process dies or does not answer, it is opened again and the batch is repeated: see
`npurt.restart`.
"""

import functools
import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from npurt.delta import DeltaError, DeltaNet, DeltaNets, require_delta
from npurt.device import F32, F64, Caps, MatMul, Packed, check_product
from npurt.errors import DeviceLost, DeviceTimeout, LayoutError, UnsupportedOp
from npurt.hexagon.connect import probe
from npurt.hexagon.connect.connection import Connection
from npurt.hexagon.device import delta_memory, weights
from npurt.hexagon.device.delta_state import HexagonState
from npurt.hexagon.device.multiply import multiply
from npurt.hexagon.device.session_memory import SessionMemory
from npurt.hexagon.device.sessions import Sessions
from npurt.hexagon.device.weight_store import WeightStore
from npurt.hexagon.device.weights import I8, HexagonInt8, HexagonPacked
from npurt.hexagon.fastrpc.caller import refuse_fork
from npurt.hexagon.fastrpc.lib import simulator
from npurt.hexagon.fastrpc.names import parse
from npurt.hexagon.layout import delta, error_bound, quantise
from npurt.hexagon.session.transport import TransportName
from npurt.products import ProductDevice
from npurt.quant.tensor import QTensor
from npurt.restart import Restarts
from npurt.settings import HEXAGON_TRANSPORT, HEXAGON_WORKER, deadline, read

GIVEN_UP = "run `npurt doctor`; if products of one model kill it, report which"


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
        self._sessions = Sessions(connection)
        self._weights = WeightStore(self._sessions)
        self._numbers = itertools.count()  # of weights
        self._states: weakref.WeakSet[HexagonState] = weakref.WeakSet()  # of delta nets
        self._restarts = Restarts(name, (DeviceLost, DeviceTimeout), GIVEN_UP)
        self._surviving(self._sessions.open_first)
        first = self._sessions.opened[0].transport
        self._arch = first.info.arch
        self.caps = Caps(name, self._sessions.describe(), first.simulated)

    # --- Weights ----------------------------------------------------------------------------------

    def why_not(self, op: MatMul) -> str | None:
        """Return None, or the first rule that *op* breaks."""
        return weights.why_not(op, self._arch)

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
                remedy="use device 'cpu' for it" + (", or requantise it" if tensor.size else ""),
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

    def _upload(self, packed: HexagonPacked) -> HexagonPacked:
        self._surviving(lambda: self._weights.upload(packed))
        return packed

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
        self._surviving(functools.partial(self._multiply, x, weights, outs))

    def _multiply(self, x: F32, weights: Sequence[Any], outs: Sequence[F32]) -> None:
        self._sessions.settled()
        multiply(x, weights, outs)

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
        return delta_memory.why_not(net)

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
        state = HexagonState(self._on_session, self._restarts.lock, net)
        with self._restarts.lock:
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
        self._surviving(lambda: work(self._sessions.settled()[0]))

    # --- Recovery, and the end --------------------------------------------------------------------

    def _surviving(self, work: Callable[[], None]) -> None:
        """Do *work*, again if the DSP dies meanwhile; errors as `Restarts.surviving`."""
        refuse_fork(self._process, "a product")
        self._restarts.surviving(work, self._reopen)

    def _reopen(self) -> None:
        """Open the device again and upload all weights."""
        self._release()
        self._sessions.open_again()
        self._weights.upload_again()

    def packets(self) -> int:
        """Return the packets that the DSP executed so far; 0 where nothing counts them."""
        return self._sessions.packets()

    def restarts(self) -> int:
        """Return how often the device was lost and opened again."""
        return self._restarts.count

    def events(self) -> list[str]:
        """Return the events since the last call; see `Device.events`."""
        return self._restarts.events()

    def close(self) -> None:
        """Release sessions and memory.  A second call does nothing."""
        self._restarts.close(self._release)

    def _release(self) -> None:
        for state in self._states:
            state.leave()
        self._sessions.close()


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
