"""States of short convolutions: the inputs of the last tokens.

A convolution reads the inputs of the last kernel_size - 1 tokens.  The inputs of ROLLBACK_TOKENS
more tokens are stored, so that a rollback of up to ROLLBACK_TOKENS tokens is exact.
"""

from collections.abc import Iterable, Mapping

from npurt.cpu.pool.engine import empty
from npurt.cpu.state.recurrent import Replay
from npurt.device.device import F32
from npurt.graph.ops import ShortConv

ROLLBACK_TOKENS = 64  # tokens that can be rolled back


def convolutions(ops: Iterable[ShortConv], sequences: int) -> dict[str, F32]:
    """Return the memory of short convolutions by name.

    Each array is ``[sequences, R, C]`` with R = ROLLBACK_TOKENS + kernel_size - 1, and token t is
    in row t % R.
    """
    made = {}
    for op in ops:
        rows, columns = ROLLBACK_TOKENS + op.weight.columns - 1, op.x.columns
        made[op.name] = empty(sequences * rows, columns).reshape(sequences, rows, columns)
    return made


class Convolved:
    """The stored inputs of a part's short convolutions, for one sequence.

    Args:
        memory: The inputs of all sequences, by name of the convolution.
        slot: The index of the sequence in that memory.

    Attributes:
        stored_inputs: The sequence's inputs by name of the convolution.
        at: The number of tokens evaluated; None during a run and after an interrupted run.
    """

    def __init__(self, memory: Mapping[str, F32], slot: int) -> None:
        self.stored_inputs = {name: inputs[slot] for name, inputs in memory.items()}
        self.at: int | None = 0
        self._seen = (
            0  # largest `at` so far; inputs of the ROLLBACK_TOKENS tokens before it are stored
        )
        self._oldest = 0  # position of the last `restored`; a rollback cannot go below it

    def clear(self) -> None:
        """Reset the sequence to no tokens."""
        self.restored(0)

    def begin_as(self, other: "Convolved") -> None:
        """Copy the stored inputs and positions of another sequence."""
        for name, inputs in self.stored_inputs.items():
            inputs[:] = other.stored_inputs[name]
        self.at, self._seen, self._oldest = other.at, other._seen, other._oldest

    def begin(self, position: int, rows: int) -> None:
        """Prepare for a run of *rows* tokens from *position* on; call `end` after the run."""
        assert self.at == position, "the states are not where the run begins"
        self.at = None
        self._seen = max(self._seen, position + rows)

    def end(self, position: int) -> None:
        """Record that a run ended at *position*."""
        self.at = position

    def reach(self, length: int) -> int:
        """Return the largest number of tokens, at most *length*, that `rewind` can keep."""
        oldest = max(self._oldest, self._seen - ROLLBACK_TOKENS)
        return length if length == self.at or length >= oldest else 0

    def rewind(self, length: int, replay: Replay, maximum: int) -> None:
        """Roll back to the first *length* tokens, a number that `reach` returned.

        The stored inputs need no replay; *replay* and *maximum* are unused.
        """
        del replay, maximum
        if length == 0:
            self.restored(0)
        self.at = length

    def restored(self, position: int) -> None:
        """Set the position to *position*; a rollback cannot go below it."""
        self.at = position
        self._seen = self._oldest = position
