"""States of gated delta nets, and their rollback.

A state can only go forward.  So the inputs of the last tokens are kept, and from time to time a
checkpoint of the states.  A rollback runs the kept inputs again from a checkpoint.  That is the
same arithmetic on the same numbers, and a small part of a forward pass.
"""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from npurt.cpu.bound import Recurrence
from npurt.cpu.engine import empty
from npurt.cpu.slots import Slots
from npurt.device import F32
from npurt.graph.ops import GatedDeltaNet, ShortConv

COPIES = 2  # of the states; they lie in slots 1 and 2, the states themselves in slot 0
SPACING = 32  # tokens between copies while tokens come one by one
KEPT = 2 * SPACING  # tokens whose inputs are kept

Replay = Callable[[int, int], None]  # run the nets alone: (tokens, position of the first)


class Recurrent:
    """States and kept inputs of every delta net of a part, for one sequence.

    Letters: H heads, W their width, C channels of the convolution.

    Args:
        nets: The nets, each with the convolution before it.

    Attributes:
        states: By name of the net, slots of ``[1, H, W, W]``: sequences, heads, rows along k.
        kept: By name of the net, ``[KEPT + kernel_size - 1, C + 2 H]``; token t in row t % their
            number.
        at: Number of tokens that the states have seen; None after an interrupted run.
        control: The slots of the next run: see `npurt.cpu.program.Program.delta`.
    """

    def __init__(self, nets: Iterable[tuple[GatedDeltaNet, ShortConv]]) -> None:
        self.states: dict[str, Slots] = {}
        self.kept: dict[str, F32] = {}
        for net, conv in nets:
            width = net.v.columns // net.heads
            array = empty((1 + COPIES) * net.heads, width * width)
            self.states[net.name] = Slots(array.reshape(1 + COPIES, 1, net.heads, width, width))
            rows, columns = KEPT + conv.weight.columns - 1, conv.x.columns + 2 * net.heads
            self.kept[net.name] = empty(rows, columns)
        self.control: npt.NDArray[np.int32] = np.array([0, -1, 0], np.int32)
        self.clear()

    def recurrences(self) -> dict[str, Recurrence]:
        """Return what programs work on, by name of the net."""
        return {n: Recurrence(s, self.kept[n], self.control) for n, s in self.states.items()}

    def clear(self) -> None:
        """Forget everything."""
        for states in self.states.values():
            states.clear()
        self.at: int | None = 0
        self._seen = 0  # the most they have seen: inputs of KEPT tokens before are there
        self._copies: list[int | None] = [None] * COPIES  # tokens that each copy has seen
        self._coming: tuple[int, int] | None = None  # the copy that the run makes

    # --- Going forward --------------------------------------------------------------------------

    def begin(self, position: int, rows: int) -> None:
        """Prepare for a run of *rows* tokens from *position* on; `end` completes it.

        Before several tokens, or some time after the last, the states are copied: no more than
        SPACING of the tokens are then to be gone over again.
        """
        assert self.at == position, "the states are not where the run begins"
        self._coming = None
        newest = max((c for c in self._copies if c is not None), default=-SPACING)
        self.control[:] = 0, -1, 0
        if rows > 1 or position + rows - newest >= SPACING:
            slot, before = self._slot(position + rows), max(0, rows - SPACING)
            self.control[:] = 0, 1 + slot, before
            self._copies[slot], self._coming = None, (slot, position + before)
        self.at = None
        self._seen = max(self._seen, position + rows)

    def end(self, position: int) -> None:
        """Record that a run ended at *position*."""
        self.at = position
        if self._coming:
            slot, seen = self._coming
            self._copies[slot], self._coming = seen, None

    def _slot(self, end: int) -> int:
        """Return the copy to give up for a run that ends at *end*: an empty one, if there is one.

        Else that is the older one, unless it will be of use for some time.
        """
        if None in self._copies:
            return self._copies.index(None)
        ages = [end - c for c in self._copies if c is not None]
        older = ages.index(max(ages))
        return older if ages[older] > KEPT - SPACING else 1 - older

    # --- Going back -----------------------------------------------------------------------------

    def reach(self, length: int) -> int:
        """Return the largest number of tokens, at most *length*, that `rewind` can keep."""
        if length == self.at:
            return length
        return length if self._copy_for(length) is not None else 0

    def _copy_for(self, length: int) -> int | None:
        """Return the slot of the latest copy from which *length* tokens can be reached."""
        usable = [
            (c, 1 + i)
            for i, c in enumerate(self._copies)
            if c is not None and self._seen - KEPT <= c <= length
        ]
        return max(usable)[1] if usable else None

    def rewind(self, length: int, replay: Replay, most: int) -> None:
        """Keep the first *length* tokens (see `reach`), by replays of at most *most* tokens."""
        if length == self.at:
            return
        slot = self._copy_for(length)
        if slot is None or length == 0:
            self.clear()
            return
        position = self._copies[slot - 1]
        assert position is not None, "a copy without its position"
        self.at = None
        for start in range(position, max(length, position + 1), most):
            self.control[:] = slot if start == position else 0, -1, 0
            replay(min(most, length - start), start)
        self.at = length
        self._copies = [c if c is not None and c <= length else None for c in self._copies]

    def restored(self, position: int) -> None:
        """Begin anew at *position*, with states and inputs that somebody wrote."""
        self.at = self._seen = position
        self._copies = [None] * COPIES
