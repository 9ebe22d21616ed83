"""States of short convolutions: their inputs of the last tokens.

A convolution reads the inputs of a few earlier tokens.  More of them are kept, so that the last
tokens can be taken back exactly.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from npurt.cpu.engine import empty
from npurt.device import F32
from npurt.llm.file.config import Config

KEPT = 64  # tokens that can be taken back


class Convolved:
    """The kept inputs of every layer with a short convolution.

    Attributes:
        kept: By layer, ``[KEPT + kernel_size - 1, D]``; token t in row t % their number.
        at: Number of tokens seen; None after an interrupted run.
    """

    def __init__(self, config: Config) -> None:
        layers = [i for i in range(config.n_layers) if config.is_convolved(i)]
        self._context = config.kernel_size - 1
        self.kept: dict[int, F32] = {i: empty(KEPT + self._context, config.width) for i in layers}
        self.at: int | None = 0
        self._seen = 0  # the most it has seen: inputs of KEPT tokens before are there
        self._oldest = 0  # where it began: nobody can go back further

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

    def rewind(self, length: int) -> None:
        """Keep the first *length* tokens; `reach` has returned that number."""
        if length == 0:
            self.restored(0)
        self.at = length

    # --- Snapshots ------------------------------------------------------------------------------

    def layout(self, layer: int) -> Iterator[tuple[tuple[int, ...], npt.DTypeLike]]:
        """Yield shape and dtype of the arrays that `read` returns."""
        width = self.kept[layer].shape[1]
        yield (self._context, width), np.dtype(np.float32)
        yield (0, width), np.dtype(np.float32)

    def read(self, layer: int) -> tuple[F32, F32]:
        """Return a copy of what the convolution will see, and nothing: other layers have two."""
        assert self.at is not None, "a run was broken off"
        rows = np.arange(self.at - self._context, self.at)
        kept = self.kept[layer][rows % len(self.kept[layer])]
        kept[rows < 0] = 0
        return kept, kept[:0]

    def write(self, layer: int, kept: F32, position: int) -> None:
        """Write what `read` returned at *position*; `restored` completes it for all layers."""
        rows = np.arange(position - self._context, position)
        self.kept[layer][rows % len(self.kept[layer])] = kept

    def restored(self, position: int) -> None:
        """Begin anew at *position*; earlier tokens cannot be taken back."""
        self.at = position
        self._seen = self._oldest = position
