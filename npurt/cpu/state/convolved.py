"""States of short convolutions: their inputs of the last tokens.

A convolution reads the inputs of a few earlier tokens.  More of them are kept, so that the last
tokens can be taken back exactly.
"""

from collections.abc import Iterable, Mapping

from npurt.cpu.pool.engine import empty
from npurt.cpu.state.recurrent import Replay
from npurt.device import F32
from npurt.graph.ops import ShortConv

KEPT = 64  # tokens that can be taken back


def convolutions(ops: Iterable[ShortConv], sequences: int) -> dict[str, F32]:
    """Return the memory of short convolutions for so many sequences, by name.

    Each has ``[sequences, KEPT + kernel_size - 1, C]``, token t in row t % their number.
    """
    made = {}
    for op in ops:
        rows, columns = KEPT + op.weight.columns - 1, op.x.columns
        made[op.name] = empty(sequences * rows, columns).reshape(sequences, rows, columns)
    return made


class Convolved:
    """The kept inputs of every short convolution of a part, for one sequence.

    Args:
        memory: Those of all sequences.
        slot: Where the sequence has its own.

    Attributes:
        kept: By name of the convolution.
        at: Number of tokens seen; None after an interrupted run.
    """

    def __init__(self, memory: Mapping[str, F32], slot: int) -> None:
        self.kept = {name: kept[slot] for name, kept in memory.items()}
        self.at: int | None = 0
        self._seen = 0  # the most it has seen: inputs of KEPT tokens before are there
        self._oldest = 0  # where it began: nobody can go back further

    def clear(self) -> None:
        """Forget everything."""
        self.restored(0)

    def begin_as(self, other: "Convolved") -> None:
        """Let everything be as another sequence has it."""
        for name, kept in self.kept.items():
            kept[:] = other.kept[name]
        self.at, self._seen, self._oldest = other.at, other._seen, other._oldest

    def begin(self, position: int, rows: int) -> None:
        """Prepare for a run of *rows* tokens from *position* on; `end` completes it."""
        assert self.at == position, "the states are not where the run begins"
        self.at = None
        self._seen = max(self._seen, position + rows)

    def end(self, position: int) -> None:
        """Record that a run ended at *position*."""
        self.at = position

    def reach(self, length: int) -> int:
        """Return the largest number of tokens, at most *length*, that `rewind` can keep."""
        oldest = max(self._oldest, self._seen - KEPT)
        return length if length == self.at or length >= oldest else 0

    def rewind(self, length: int, replay: Replay, most: int) -> None:
        """Keep the first *length* tokens, which `reach` returned; nothing is to be replayed."""
        del replay, most
        if length == 0:
            self.restored(0)
        self.at = length

    def restored(self, position: int) -> None:
        """Begin anew at *position*; earlier tokens cannot be taken back."""
        self.at = position
        self._seen = self._oldest = position
