"""States of short convolutions: their inputs of the last tokens.

A convolution reads the inputs of a few earlier tokens.  More of them are kept, so that the last
tokens can be taken back exactly.
"""

from collections.abc import Iterable

from npurt.cpu.engine import empty
from npurt.cpu.recurrent import Replay
from npurt.device import F32
from npurt.graph.ops import ShortConv

KEPT = 64  # tokens that can be taken back


class Convolved:
    """The kept inputs of every short convolution of a part, for one sequence.

    Args:
        convolutions: The convolutions, without those of delta nets.

    Attributes:
        kept: By name of the convolution, ``[KEPT + kernel_size - 1, C]``; token t in row t % their
            number.
        at: Number of tokens seen; None after an interrupted run.
    """

    def __init__(self, convolutions: Iterable[ShortConv]) -> None:
        self.kept: dict[str, F32] = {
            op.name: empty(KEPT + op.weight.columns - 1, op.x.columns) for op in convolutions
        }
        self.at: int | None = 0
        self._seen = 0  # the most it has seen: inputs of KEPT tokens before are there
        self._oldest = 0  # where it began: nobody can go back further

    def clear(self) -> None:
        """Forget everything."""
        self.restored(0)

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
