"""The residual stream where it enters some layers: what a draft network reads of its target.

A model without such a draft has no taps, and copies nothing.
"""

from collections.abc import Callable, Sequence

import numpy as np

from npurt.device import F32

Reader = Callable[[F32, int], None]


class Taps:
    """Values that runs of a model leave behind, until they are read.

    They are read when somebody asks, or when their room is used up.  A run from an earlier position
    replaces what came from there on; a run from a later position than the last ended at, as after
    `Llama.restore`, is not kept.

    Args:
        layers: Of which the input is kept, in the order in which it is wanted.
        rows: Tokens to keep: at least those of one run.
        width: D of the model.

    Attributes:
        tokens: Those whose values were kept: the model's context, unless that was restored or
            shifted.
        reader: Called with ``[T, layers * D]`` and the position of the first row.
    """

    def __init__(self, layers: Sequence[int], rows: int, width: int) -> None:
        self.layers = tuple(layers)
        self.tokens: list[int] = []
        self.reader: Reader = lambda values, position: None
        self._values: F32 = np.empty((rows, len(layers), width), np.float32)
        self._start = 0  # position of the first row
        self._at: int | None = None  # the row where the run goes

    def begin(self, position: int, rows: int) -> None:
        """Get ready for a run of *rows* tokens from *position* on."""
        self._at = None
        if position > len(self.tokens):
            return
        del self.tokens[position:]
        self._start = min(self._start, position)
        if position - self._start + rows > len(self._values):
            self.flush()
        self._at = position - self._start

    def end(self, ids: Sequence[int]) -> None:
        """Take note of the run over *ids*."""
        if self._at is not None:
            self.tokens += ids

    def keep(self, layer: int) -> Callable[[F32, int], None]:
        """Return what copies the first rows of an array, which enter *layer*."""
        columns = [i for i, tapped in enumerate(self.layers) if tapped == layer]

        def copy(x: F32, rows: int) -> None:
            if self._at is not None:
                self._values[self._at : self._at + rows, columns] = x[:rows, None]

        return copy

    @property
    def unread(self) -> int:
        """Tokens whose values nobody read yet."""
        return len(self.tokens) - self._start

    def flush(self) -> None:
        """Have everything read that was not."""
        count = self.unread
        if count:
            self.reader(self._values[:count].reshape(count, -1), self._start)
        self._start = len(self.tokens)
