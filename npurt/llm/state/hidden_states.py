"""Capture hidden states: the inputs of some layers, which a draft network reads.

A model without a draft network captures no hidden states.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from npurt.device.device import F32

Reader = Callable[[F32, int], None]


class HiddenStates:
    """A buffer of the captured hidden states that the reader has not read.

    `flush` passes the states to the reader; a run that exceeds the buffer flushes it first.  A run
    from an earlier position replaces the states from this position on.  A run that begins beyond
    the last captured token, as after `Llama.restore`, is not captured.

    Args:
        layers: The layers whose inputs are captured, in the order of the reader's columns.
        rows: The size of the buffer in tokens, at least the rows of one run.
        width: D of the model.

    Attributes:
        tokens: The tokens whose states were captured: the tokens of the context, unless the context
            was restored or shifted.
        reader: A function of the states ``[T, layers * D]`` and the position of the first row.
    """

    def __init__(self, layers: Sequence[int], rows: int, width: int) -> None:
        self.layers = tuple(layers)
        self.tokens: list[int] = []
        self.reader: Reader = lambda values, position: None
        self._values: F32 = np.empty((rows, len(layers), width), np.float32)
        self._start = 0  # position of the first row
        self._row: int | None = (
            None  # the row of the run's first token; None: the run is not captured
        )

    def begin(self, position: int, rows: int) -> None:
        """Prepare for a run of *rows* tokens from *position* on."""
        self._row = None
        if position > len(self.tokens):
            return
        del self.tokens[position:]
        self._start = min(self._start, position)
        if position - self._start + rows > len(self._values):
            self.flush()
        self._row = position - self._start

    def end(self, ids: Sequence[int], values: Mapping[str, F32], first: int = 0) -> None:
        """Record that the run over *ids* is complete, and copy its hidden states.

        Args:
            values: The outputs of the run; ``hidden.L`` is the input of layer L.
            first: The row of the first token of *ids* in *values*.
        """
        if self._row is None:
            return
        self.tokens += ids
        for i, layer in enumerate(self.layers):
            inputs = values[f"hidden.{layer}"][first : first + len(ids)]
            self._values[self._row : self._row + len(ids), i] = inputs

    @property
    def unread(self) -> int:
        """The number of captured tokens whose states the reader has not read."""
        return len(self.tokens) - self._start

    def flush(self) -> None:
        """Pass the unread states to the reader."""
        count = self.unread
        if count:
            self.reader(self._values[:count].reshape(count, -1), self._start)
        self._start = len(self.tokens)
