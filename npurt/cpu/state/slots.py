"""The state of a delta net for one sequence, stored on the host or on a device.

Programs of the host store the state as float32 in an array.  A device that runs the net stores it
in the device's format; the array is then out of date, and `Slots.read` converts to float32.  Other
modules use `Slots` and need not know where the state is.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.device.delta import DeltaState, state_values
from npurt.device.device import F32


class Slots:
    """The state of a delta net for one sequence, and saved copies of the state.

    Args:
        array: float32 ``[1 + copies, N, H, W (of v), W (of k)]``: the state, then the copies.
    """

    def __init__(self, array: F32) -> None:
        self._array = array
        self._make: Callable[[], DeltaState] | None = None
        self._state: DeltaState | None = None
        self._copies: dict[int, Any] = {}

    def read(self) -> F32:
        """Return a read-only view of the state, valid until the next run."""
        return self._array[0] if self._state is None else self._state.read()

    def clear(self) -> None:
        """Set the state to zero."""
        self._array[0] = 0
        if self._state is not None:
            self._state.write(self._array[0])

    @property
    def integers(self) -> bool:
        """True if `exact` returns integers (see `npurt.device.delta`), False if float32."""
        return self._make is not None and self.state.integers

    def exact(self) -> npt.NDArray[Any]:
        """Return an exact copy of the state; errors are those of `DeltaState.exact`."""
        return self._array[0].copy() if self._make is None else self.state.exact()

    def restore(self, exact: npt.NDArray[Any]) -> bool:
        """Set the state to *exact*; return False if the values were rounded.

        Values are rounded if *exact* is float32 and the state integers, or the other way round.
        """
        if self._make is None:
            self._array[0] = state_values(exact)
        else:
            self.state.restore(exact)
        return (exact.dtype == np.int32) == self.integers

    def begin_as(self, other: "Slots") -> None:
        """Set the state and the copies to those of another sequence."""
        if self._make is None:
            self._array[:] = other._array
        else:
            self.state.restore_checkpoint(other.state.checkpoint())
            self._copies = dict(other._copies)

    def restore_checkpoint(self, slot: int) -> None:
        """Set the state to the copy in *slot*."""
        if self._make is None:
            self._array[0] = self._array[slot]
        else:
            self.state.restore_checkpoint(self._copies[slot])

    # --- On a device ----------------------------------------------------------------------------

    @property
    def state(self) -> DeltaState:
        """The state on the device, created on first use from the array."""
        assert self._make is not None, "no device stores the states"
        if self._state is None:
            self._state = self._make()
            self._state.write(self._array[0])
        return self._state

    def move(self, make: Callable[[], DeltaState]) -> None:
        """Store the state and its copies on a device from now on, in a state that *make* returns.

        A state on an earlier device moves at once.  Otherwise, `state` calls *make* on first use.
        """
        self._make, old = make, self._state
        if old is None:
            return
        new = make()

        def moved(checkpoint: Any) -> Any:
            exact, tokens = old.history(checkpoint)
            new.restore(exact)
            for net in tokens:
                new.advance(net)
            return new.checkpoint()

        present = old.checkpoint()
        self._copies = {slot: moved(kept) for slot, kept in self._copies.items()}
        moved(present)
        self._state = new

    def save(self, slot: int) -> None:
        """Save a copy of the device's state in *slot*."""
        self._copies[slot] = self.state.checkpoint()
