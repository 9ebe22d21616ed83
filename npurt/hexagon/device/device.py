"""The Hexagon CDSP as a device: weights in shared memory, products in batches of ops.

If the DSP process dies or does not answer, the device opens a new session and repeats the batch;
see `npurt.device.restart`.
"""

import functools
import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from npurt.device.delta import DeltaError, DeltaNet, DeltaNets, require_delta
from npurt.device.device import F32, F64, Caps, MatMul, Packed, check_product
from npurt.device.host_products import HostDevice
from npurt.device.products import ProductDevice
from npurt.device.restart import Restarts
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
from npurt.quant.tensor import QTensor
from npurt.settings import HEXAGON_TRANSPORT, HEXAGON_WORKER, deadline, read

GIVEN_UP = "run `npurt doctor`; if only one model fails on the DSP, report this model"


class HexagonDevice(ProductDevice, DeltaNets):
    """An open Hexagon DSP.

    Args:
        name: The device string.
        connection: The settings for opening sessions; used again for a restart and for further
            sessions.

    Raises:
        NpurtError: No session can be opened; see `Session.open`.
    """

    def __init__(self, name: str, connection: Connection) -> None:
        self._process = os.getpid()
        self._sessions = Sessions(connection)
        self._weights = WeightStore(self._sessions)
        self._numbers = itertools.count()  # for weights
        self._states: weakref.WeakSet[HexagonState] = weakref.WeakSet()  # of delta nets
        self._restarts = Restarts(name, (DeviceLost, DeviceTimeout), GIVEN_UP)
        self._surviving(self._sessions.open_first)
        first = self._sessions.opened[0].transport
        self._arch = first.info.arch
        self.caps = Caps(name, self._sessions.describe(), first.simulated)

    # --- Weights ----------------------------------------------------------------------------------

    def why_not(self, op: MatMul) -> str | None:
        """Return None if the DSP can compute *op*, else the first rule that *op* breaks."""
        return weights.why_not(op, self._arch)

    def pack(self, tensor: QTensor, *, int16: bool | None = False) -> HexagonPacked:
        """Lay out a weight and upload it; *int16* has no effect: activations have one precision.

        Raises:
            UnsupportedOp: `why_not` has a reason against the weight.
            DeviceFull: No session has memory for the weight.
            DeviceLost: The device was lost too often.
        """
        if tensor.ndim != 2 or tensor.transposed:
            raise LayoutError(
                f"a weight is 2-D, [N, K] as in the file, not {tensor!r}",
                remedy="pass the tensor itself, not its .T; pass experts one by one",
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

        Products round activations to int8 with one scale per row (W8A8).

        Raises:
            LayoutError: K is not a multiple of 32, or a shape is wrong.
            DeviceFull: No session has memory for the weight.
            DeviceLost: The device was lost too often.
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
        """Write the products of x and *weights* to *outs*, in one call if they fit one batch.

        Raises:
            LayoutError: The shapes do not match; see `Device.matmul`.
            DeviceLost: The device was lost too often.
            NumericsError: *x* holds NaN or infinity.
        """
        check_product(self, x, weights, outs, strided=True)
        self._surviving(functools.partial(self._multiply, x, weights, outs))

    def _multiply(self, x: F32, weights: Sequence[Any], outs: Sequence[F32]) -> None:
        self._sessions.settled()
        multiply(x, weights, outs)

    def on_host(self, packed: Packed, threads: int) -> Packed:
        """Return *packed* for the host, which computes the same bits; see `KeepsArithmetic`."""
        assert isinstance(packed, HexagonPacked)
        return packed.on_host(HostDevice(self.caps.name, threads))

    def multiplied(self, x: F32, w: Packed) -> F64:
        """Return x as the kernels multiply it: rounded to int8 codes with a scale per group."""
        assert isinstance(w, HexagonPacked)
        return quantise.multiplied(x, w.group)

    def magnitudes(self, x: F32, w: Packed) -> F64:
        """Return the factors to which rounding errors are proportional; see `error_bound`."""
        assert isinstance(w, HexagonPacked)
        return error_bound.magnitudes(quantise.quantise(x, w.group), w.group)

    # --- Gated delta nets -------------------------------------------------------------------------

    def why_not_delta(self, net: DeltaNet) -> str | None:
        """Return None if the DSP can run *net*, else the first rule that *net* breaks."""
        return delta_memory.why_not(net)

    @property
    def delta_error(self) -> DeltaError:
        """The error of `delta_net`; `npurt.hexagon.layout.delta` derives it."""
        return DeltaError(delta.ERROR, delta.ABSOLUTE_ERROR)

    def delta_state(self, net: DeltaNet) -> HexagonState:
        """Return a state that starts as that of *net* and advances in integers.

        See docs/decisions/011.  `HexagonState.advance` raises the errors of `delta_net`.

        Raises:
            UnsupportedOp: `why_not_delta` has a reason against *net*.
        """
        require_delta(self, net)
        state = HexagonState(self._on_session, self._restarts.lock, net)
        with self._restarts.lock:
            self._states.add(state)
        return state

    def delta_net(self, net: DeltaNet) -> None:
        """Run *net* on the DSP; `net.state` changes only if the run succeeds.

        Raises:
            UnsupportedOp: `why_not_delta` has a reason against *net*.
            DeviceFull: The DSP has no memory for the state.
            DeviceLost: The device was lost too often.
            NumericsError: *net* holds NaN or infinity.
        """
        state = self.delta_state(net)
        state.advance(net)
        net.state[...] = state.read()

    def _on_session(self, work: Callable[[SessionMemory], None]) -> None:
        """Call *work* with the memory of the first session; repeat the call after a restart.

        The first session holds the states of all delta nets.
        """
        self._surviving(lambda: work(self._sessions.settled()[0]))

    # --- Recovery and release ---------------------------------------------------------------------

    def _surviving(self, work: Callable[[], None]) -> None:
        """Call *work*; repeat it after a restart of the DSP; errors as `Restarts.surviving`."""
        refuse_fork(self._process, "a product")
        self._restarts.surviving(work, self._reopen)

    def _reopen(self) -> None:
        """Open the device again and upload all weights."""
        self._release()
        self._sessions.open_again()
        self._weights.upload_again()

    def packets(self) -> int:
        """Return the packets that the DSP has executed; hardware does not count them: 0."""
        return self._sessions.packets()

    def call_count(self) -> int:
        """Return the number of FastRPC calls that ran products or delta nets."""
        return self._sessions.calls()

    def restarts(self) -> int:
        """Return how often the device was lost and reopened."""
        return self._restarts.count

    def events(self) -> list[str]:
        """Return the events since the last call; see `Device.events`."""
        return self._restarts.events()

    def close(self) -> None:
        """Release all sessions and their memory.  A second call does nothing."""
        self._restarts.close(self._release)

    def _release(self) -> None:
        for state in self._states:
            state.leave()
        self._sessions.close()


def open_hexagon(text: str) -> HexagonDevice:
    """Open the device of a device string: ``hexagon[:INDEX[/SESSION]]`` or ``hexagon:sim[-vNN]``.

    Raises:
        DeviceNotFound: *text* is not such a string, or the machine has no such device.
        DriverError: The device cannot be opened; the message gives the reason.
        SettingError: A setting has an invalid value.
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
