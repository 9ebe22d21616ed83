"""States of delta nets in integers on the CPU, equal to those of a Hexagon bit for bit.

If the CPU takes over from a lost Hexagon, it continues with integer states, so the change of device
rounds no state.  Otherwise, the CPU uses float32 states, which are faster.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu.kernels import abi
from npurt.device.delta import ALL, I32, DeltaNet, DeltaState, state_integers, state_values
from npurt.device.device import F32
from npurt.errors import NumericsError


class IntegerState(DeltaState):
    """The state of a net: float32 before the first `advance`, integers after it."""

    integers = True

    def __init__(self, net: DeltaNet) -> None:
        self._exact: npt.NDArray[Any] = net.state.copy()

    def advance(self, net: DeltaNet) -> None:
        """See `DeltaState.advance`.

        Raises:
            NumericsError: The inputs or the state hold NaN or infinity.
        """
        if not all(np.isfinite(x).all() for x in (net.q, net.k, net.v, net.decay, net.beta)):
            raise NumericsError(
                "the inputs of a delta net hold NaN or infinity",
                remedy="run it with device 'cpu'; if that fails too, download the model again",
            )
        exact = self._exact
        exact = state_integers(exact) if exact.dtype == np.float32 else exact.copy()
        for sequence, state in enumerate(exact):
            _run(net, sequence, state)
        self._exact = exact

    def write(self, values: F32) -> None:
        """See `DeltaState.write`."""
        self._exact = values.copy()

    def checkpoint(self) -> npt.NDArray[Any]:
        """See `DeltaState.checkpoint`; the array is never written to."""
        return self._exact

    def restore_checkpoint(self, checkpoint: npt.NDArray[Any]) -> None:
        """See `DeltaState.restore_checkpoint`."""
        self._exact = checkpoint

    def to_float32(self, checkpoint: npt.NDArray[Any], heads: slice = ALL) -> F32:
        """See `DeltaState.to_float32`."""
        return state_values(checkpoint[:, heads])

    def exact(self) -> I32:
        """See `DeltaState.exact`."""
        exact = self._exact
        return state_integers(exact) if exact.dtype == np.float32 else exact.copy()

    def restore(self, exact: npt.NDArray[Any]) -> None:
        """See `DeltaState.restore`."""
        self._exact = exact.copy()


def _run(net: DeltaNet, sequence: int, state: I32) -> None:
    """Advance *state* ``[H, W, W + 2]`` by a sequence of *net*; write its results."""
    ffi = abi.ffi()
    tokens, heads, width = net.v.shape[1:]
    out = np.empty((tokens, heads, width), np.float32)
    inputs = {
        name: np.ascontiguousarray(getattr(net, name)[sequence], np.float32)
        for name in ("q", "k", "v", "decay", "beta")
    }
    struct = ffi.new("npurt_integer_delta *")
    for name, array in {**inputs, "out": out, "state": state}.items():
        kind = "int32_t *" if array.dtype == np.int32 else "float *"
        setattr(struct, name, ffi.cast(kind, array.ctypes.data))
    struct.tokens, struct.heads, struct.k_heads = tokens, heads, net.k.shape[2]
    struct.width, struct.decays, struct.grouped = width, net.decay.shape[3], net.grouped
    struct.scale = net.scale
    abi.lib().npurt_delta_integers(struct)
    net.out[sequence] = out
