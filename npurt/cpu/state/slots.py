"""States of a delta net.  Only this module knows whether the host or a device has them.

Programs of the host keep them as float32 in an array.  A device that runs the net has them in a
form of its own: the array is then out of date, and float32 is made when somebody reads.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.delta import DeltaState, state_values
from npurt.device import F32


class Slots:
    """The state of a net for one sequence, and copies of it.

    Args:
        array: float32 ``[1 + copies, N, H, W (of v), W (of k)]``, the state first.
    """

    def __init__(self, array: F32) -> None:
        self._array = array
        self._make: Callable[[], DeltaState] | None = None
        self._state: DeltaState | None = None
        self._copies: dict[int, Any] = {}

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
        return self._make is not None and self.state.integers

    def exact(self) -> npt.NDArray[Any]:
        """Return an exact copy of the state; errors as `DeltaState.exact`."""
        return self._array[0].copy() if self._make is None else self.state.exact()

    def restore(self, exact: npt.NDArray[Any]) -> bool:
        """Let the state be *exact*; return False when it had to be rounded.

        Only here is float32 converted to integers, or integers to float32.
        """
        if self._make is None:
            self._array[0] = state_values(exact)
        else:
            self.state.restore(exact)
        return (exact.dtype == np.int32) == self.integers

    def begin_as(self, other: "Slots") -> None:
        """Let the state and the copies be those of another sequence."""
        if self._make is None:
            self._array[:] = other._array
        else:
            self.state.restore_checkpoint(other.state.checkpoint())
            self._copies = dict(other._copies)

    def restore_checkpoint(self, slot: int) -> None:
        """Go on from the copy in *slot*."""
        if self._make is None:
            self._array[0] = self._array[slot]
        else:
            self.state.restore_checkpoint(self._copies[slot])

    # --- On a device ----------------------------------------------------------------------------

    @property
    def state(self) -> DeltaState:
        """The state, which a device has."""
        assert self._make is not None, "no device has the states"
        if self._state is None:
            self._state = self._make()
            self._state.write(self._array[0])
        return self._state

    def move(self, make: Callable[[], DeltaState]) -> None:
        """Move all values to a state that *make* returns.

        It is made when it is first needed: there may be no sequence yet.
        """
        self._make = make
        if self._state is not None:
            state, last = make(), self._state.read()
            for slot, kept in self._copies.items():
                state.write(self._state.to_float32(kept))
                self._copies[slot] = state.checkpoint()
            state.write(last)
            self._state = state

    def save(self, slot: int) -> None:
        """Copy the state to *slot*."""
        self._copies[slot] = self.state.checkpoint()
