"""States of gated delta nets, and their rollback.

A state cannot be computed backwards.  So the inputs of the last tokens are stored, and a checkpoint
of the states every few tokens.  A rollback evaluates stored inputs again, from a checkpoint on.
This gives the same bits as the first evaluation, at a small part of the cost of a forward pass.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from npurt.cpu.pool.engine import empty
from npurt.cpu.state.arrays import Recurrence
from npurt.cpu.state.slots import Slots
from npurt.graph.ops import GatedDeltaNet, ShortConv
from npurt.graph.sizes import CHECKPOINT_SPACING as SPACING

COPIES = 2  # checkpoints per state, at indices 1 and 2; the state itself is at index 0
STORED_TOKENS = 2 * SPACING  # number of last tokens whose inputs are stored

# Evaluates the nets alone over stored inputs: (number of tokens, position of the first).
Replay = Callable[[int, int], None]


def recurrences(
    nets: Iterable[tuple[GatedDeltaNet, ShortConv]], sequences: int
) -> dict[str, Recurrence]:
    """Return the memory of delta nets by name of the net.

    Letters: S slots, H heads, W head width, C channels of the convolution,
    R = STORED_TOKENS + kernel_size - 1.  States are ``[S, 1 + COPIES, 1, H, W, W]``, the last axis
    along k.  Stored inputs are ``[S, R, C + 2 H]``, token t in row t % R.

    Args:
        nets: The nets, each with the convolution before it.
        sequences: The number of slots.
    """
    control = np.tile(np.array([0, -1, 0], np.int32), (sequences, 1))
    made = {}
    for net, conv in nets:
        width = net.v.columns // net.heads
        array = empty(sequences * (1 + COPIES) * net.heads, width * width)
        array = array.reshape(sequences, 1 + COPIES, 1, net.heads, width, width)
        rows, columns = STORED_TOKENS + conv.weight.columns - 1, conv.x.columns + 2 * net.heads
        inputs = empty(sequences * rows, columns).reshape(sequences, rows, columns)
        made[net.name] = Recurrence([Slots(states) for states in array], array, inputs, control)
    return made


class Recurrent:
    """The states of a part's delta nets for one sequence.

    Args:
        nets: The memory of the delta nets, by name of the net.
        slot: The index of the sequence's states in that memory.

    Attributes:
        states: The state and its checkpoints, by name of the net.
        stored_inputs: Stored inputs by name of the net.
        at: The number of tokens evaluated; None during a run and after an interrupted run.
    """

    def __init__(self, nets: Mapping[str, Recurrence], slot: int) -> None:
        self.states = {name: held.slots[slot] for name, held in nets.items()}
        self.stored_inputs = {name: held.inputs[slot] for name, held in nets.items()}
        self._control = next(iter(nets.values())).control[slot]
        self.clear()

    def clear(self) -> None:
        """Reset the sequence to no tokens."""
        for states in self.states.values():
            states.clear()
        self.at: int | None = 0
        self._seen = (
            0  # largest `at` so far; inputs of the STORED_TOKENS tokens before it are stored
        )
        self._copies: list[int | None] = [None] * COPIES  # tokens before each checkpoint
        # The checkpoint that the current run makes: its index in `_copies`, the tokens before it.
        self._coming: tuple[int, int] | None = None

    def begin_as(self, other: "Recurrent") -> None:
        """Copy the states, checkpoints and stored inputs of another sequence."""
        for name, states in self.states.items():
            states.begin_as(other.states[name])
            self.stored_inputs[name][:] = other.stored_inputs[name]
        self.at, self._seen, self._copies = other.at, other._seen, other._copies[:]

    # --- Going forward --------------------------------------------------------------------------

    def begin(self, position: int, rows: int) -> None:
        """Prepare for a run of *rows* tokens from *position* on; call `end` after the run.

        A run makes a checkpoint if it has several tokens, or if the last checkpoint is SPACING
        tokens old.  So a rollback replays at most SPACING tokens.
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
        """Return the index of the checkpoint that a run to position *end* overwrites.

        This is an empty one if there is one.  Otherwise it is the older one if it is more than
        STORED_TOKENS - SPACING tokens old, else the newer one.
        """
        if None in self._copies:
            return self._copies.index(None)
        ages = [end - c for c in self._copies if c is not None]
        older = ages.index(max(ages))
        return older if ages[older] > STORED_TOKENS - SPACING else 1 - older

    # --- Going back -----------------------------------------------------------------------------

    def reach(self, length: int) -> int:
        """Return the largest number of tokens, at most *length*, that `rewind` can keep."""
        if length == self.at:
            return length
        return length if self._copy_for(length) is not None else 0

    def _copy_for(self, length: int) -> int | None:
        """Return the slot of the latest checkpoint that a replay to *length* can start from."""
        usable = [
            (c, 1 + i)
            for i, c in enumerate(self._copies)
            if c is not None and self._seen - STORED_TOKENS <= c <= length
        ]
        return max(usable)[1] if usable else None

    def rewind(self, length: int, replay: Replay, maximum: int) -> None:
        """Roll back to the first *length* tokens, in replays of at most *maximum* tokens.

        *length* is a number that `reach` returned.
        """
        if length == self.at:
            return
        slot = self._copy_for(length)
        if slot is None or length == 0:
            self.clear()
            return
        position = self._copies[slot - 1]
        assert position is not None, "a checkpoint without its position"
        self.at = None
        if length == position:
            for states in self.states.values():
                states.restore_checkpoint(slot)
        for start in range(position, length, maximum):
            self._control[:] = slot if start == position else 0, -1, 0
            replay(min(maximum, length - start), start)
        self.at = length
        self._copies = [c if c is not None and c <= length else None for c in self._copies]

    def restored(self, position: int) -> None:
        """Set the position to *position* after states were written; drop all checkpoints."""
        self.at = self._seen = position
        self._copies = [None] * COPIES
