"""States of a delta net, and who has them: the one place that knows.

Programs of the host keep them as float32 in an array.  A device that runs the net has them in a
form of its own: the array is then out of date, and float32 is made when somebody reads.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.delta import DeltaState, state_values
from npurt.device import F32


class Slots:
    """The state of a net, in slot 0, and copies of it in others.

    Args:
        array: float32 ``[slots, N, H, W (of v), W (of k)]``.
    """

    def __init__(self, array: F32) -> None:
        self._array = array
        self._state: DeltaState | None = None
        self._copies: dict[int, Any] = {}

    @property
    def array(self) -> F32:
        """All of them, for programs of the host; no device may have them."""
        assert self._state is None, "a device has the states"
        return self._array

    def read(self) -> F32:
        """Return the state, until the next run; not to be written to."""
        return self._array[0] if self._state is None else self._state.read()

    def clear(self) -> None:
        """Let the state be zero."""
        self._array[0] = 0
        if self._state is not None:
            self._state.write(self._array[0])

    @property
    def integers(self) -> bool:
        """Whether `exact` returns integers (`npurt.delta.STATE_INTEGERS`), or float32."""
        return self._state is not None and self._state.integers

    def exact(self) -> npt.NDArray[Any]:
        """Return a copy of the state that says all of it; raises `DeltaState.exact`'s."""
        return self._array[0].copy() if self._state is None else self._state.exact()

    def restore(self, exact: npt.NDArray[Any]) -> bool:
        """Let the state be *exact*; return False when it had to be rounded.

        It is where one of float32 and integers becomes the other.
        """
        if self._state is None:
            self._array[0] = state_values(exact)
        else:
            self._state.restore(exact)
        return (exact.dtype == np.int32) == self.integers

    # --- On a device ----------------------------------------------------------------------------

    @property
    def state(self) -> DeltaState:
        """The state, which a device has."""
        assert self._state is not None, "no device has the states"
        return self._state

    def move(self, state: DeltaState) -> None:
        """Let *state* have them from now on, and be what they were."""
        if self._state is not None:
            last = self._state.read()
            for slot, kept in self._copies.items():
                state.write(self._state.to_float32(kept))
                self._copies[slot] = state.checkpoint()
            state.write(last)
        self._state = state

    def save(self, slot: int) -> None:
        """Copy the state to *slot*."""
        self._copies[slot] = self.state.checkpoint()

    def restore_checkpoint(self, slot: int) -> None:
        """Go on from the copy in *slot*."""
        self.state.restore_checkpoint(self._copies[slot])
