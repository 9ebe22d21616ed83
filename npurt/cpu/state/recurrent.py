"""States of gated delta nets, and their rollback.

A state can only go forward.  So the inputs of the last tokens are kept, and from time to time a
checkpoint of the states.  A rollback runs the kept inputs again from a checkpoint.  That is the
same arithmetic on the same numbers, and a small part of a forward pass.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from npurt.cpu.pool.engine import empty
from npurt.cpu.state.arrays import Recurrence
from npurt.cpu.state.slots import Slots
from npurt.graph.ops import GatedDeltaNet, ShortConv

COPIES = 2  # of the states; they lie in slots 1 and 2, the states themselves in slot 0
SPACING = 32  # tokens between copies while tokens come one by one
KEPT = 2 * SPACING  # tokens whose inputs are kept

Replay = Callable[[int, int], None]  # run the nets alone: (tokens, position of the first)


def recurrences(
    nets: Iterable[tuple[GatedDeltaNet, ShortConv]], sequences: int
) -> dict[str, Recurrence]:
    """Return the memory of delta nets for so many sequences, by name of the net.

    Letters: S slots of sequences, H heads, W their width, C channels of the convolution.  States
    are ``[S, 1 + COPIES, 1, H, W, W]``, rows along k; kept inputs
    ``[S, KEPT + kernel_size - 1, C + 2 H]``, token t in row t % their number.

    Args:
        nets: The nets, each with the convolution before it.
    """
    control = np.tile(np.array([0, -1, 0], np.int32), (sequences, 1))
    made = {}
    for net, conv in nets:
        width = net.v.columns // net.heads
        array = empty(sequences * (1 + COPIES) * net.heads, width * width)
        array = array.reshape(sequences, 1 + COPIES, 1, net.heads, width, width)
        rows, columns = KEPT + conv.weight.columns - 1, conv.x.columns + 2 * net.heads
        inputs = empty(sequences * rows, columns).reshape(sequences, rows, columns)
        made[net.name] = Recurrence([Slots(states) for states in array], array, inputs, control)
    return made


class Recurrent:
    """What the delta nets of a part remember of one sequence.

    Args:
        nets: The memory of all of them.
        slot: Where the sequence has its part.

    Attributes:
        states: By name of the net.
        kept: Inputs by name of the net.
        at: Number of tokens that the states have seen; None after an interrupted run.
    """

    def __init__(self, nets: Mapping[str, Recurrence], slot: int) -> None:
        self.states = {name: held.slots[slot] for name, held in nets.items()}
        self.kept = {name: held.inputs[slot] for name, held in nets.items()}
        self._control = next(iter(nets.values())).control[slot]
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        for states in self.states.values():
            states.clear()
        self.at: int | None = 0
        self._seen = 0  # the most they have seen: inputs of KEPT tokens before are there
        self._copies: list[int | None] = [None] * COPIES  # tokens that each copy has seen
        self._coming: tuple[int, int] | None = None  # the copy that the run makes

    def begin_as(self, other: "Recurrent") -> None:
        """Let everything be as another sequence has it."""
        for name, states in self.states.items():
            states.begin_as(other.states[name])
            self.kept[name][:] = other.kept[name]
        self.at, self._seen, self._copies = other.at, other._seen, other._copies[:]

    # --- Going forward --------------------------------------------------------------------------

    def begin(self, position: int, rows: int) -> None:
        """Prepare for a run of *rows* tokens from *position* on; `end` completes it.

        The states are copied before a run of several tokens, or when the last copy is old: so a
        rollback replays at most SPACING tokens.
        """
        assert self.at == position, "the states are not where the run begins"
        self._coming = None
        newest = max((c for c in self._copies if c is not None), default=-SPACING)
        self._control[:] = 0, -1, 0
        if rows > 1 or position + rows - newest >= SPACING:
            slot, before = self._slot(position + rows), max(0, rows - SPACING)
            self._control[:] = 0, 1 + slot, before
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
        """Return the copy that a run which ends at *end* may overwrite.

        It is an empty one, if there is one; else the older one, unless that will be useful for
        some time.
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
        if length == position:
            for states in self.states.values():
                states.restore_checkpoint(slot)
        for start in range(position, length, most):
            self._control[:] = slot if start == position else 0, -1, 0
            replay(min(most, length - start), start)
        self.at = length
        self._copies = [c if c is not None and c <= length else None for c in self._copies]

    def restored(self, position: int) -> None:
        """Begin anew at *position*, with states and inputs that somebody wrote."""
        self.at = self._seen = position
        self._copies = [None] * COPIES
