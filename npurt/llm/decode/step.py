"""A step: one run of the model for one or several sequences, with the logits of their next tokens.

`Llama` runs the steps of one sequence in its caller's thread.  An `Engine` runs the steps of many.
"""

import time
from collections.abc import Iterable, Sequence

import numpy as np

from npurt.device.device import F32
from npurt.llm.decode.generated import GeneratedSequence
from npurt.llm.session.context import Piece, run_together


class DecodeStep:
    """Runs the steps of sequences, one after another.

    Args:
        n_vocab: The number of logits of a token.

    Attributes:
        rows: The number of rows of the latest run.
        seconds: The time of the latest run.
    """

    def __init__(self, n_vocab: int) -> None:
        self.rows = 0
        self.seconds = 0.0
        self._out: F32 = np.empty((0, n_vocab), np.float32)
        self._taken = 0  # rows of `_out` that `take` has returned

    def run(
        self, decoding: Iterable[tuple[GeneratedSequence, list[int]]], prompts: Sequence[Piece] = ()
    ) -> bool:
        """Evaluate the last token of each sequence in *decoding* with its draft tokens.

        Args:
            decoding: Sequences, each with its draft tokens.
            prompts: Parts of prompts, which are evaluated in the same run.

        Returns:
            False if a device failed and lost the states of all contexts: see `run_together`.
        """
        pieces, wanted, self.rows = list[Piece](), 0, 0
        for sequence, draft in decoding:
            assert sequence.context, "a waiting sequence is not decoded"
            pieces.append(Piece(sequence.context, [sequence.history[-1], *draft], 1 + len(draft)))
        pieces += prompts
        for piece in pieces:
            self.rows += len(piece.ids)
            wanted += piece.wanted
        if len(self._out) < wanted:
            self._out = np.empty((wanted, self._out.shape[1]), np.float32)
        self._taken = 0
        start = time.perf_counter()
        done = run_together(pieces, self._out)
        self.seconds = time.perf_counter() - start
        return done

    def take(self, count: int) -> F32:
        """Return the next *count* rows of logits: first of *decoding*, then of *prompts*.

        The next run overwrites them.
        """
        start, self._taken = self._taken, self._taken + count
        return self._out[start : self._taken]
