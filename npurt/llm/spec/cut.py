"""The output matrix, cut to the tokens that a text is made of: what a draft need not read.

A vocabulary is numbered as its tokens were merged, frequent ones first, so its first quarter holds
nearly all of most texts; a draft that never guesses the rest reads that much less, and is seldom
wrong for it.  (FR-Spec, Zhao et al. 2025, cuts by a list of frequent tokens instead.)  A text with
many tokens from behind a cut gets more of the matrix.
"""

import functools
from collections.abc import Sequence
from itertools import islice

from npurt.device import F32
from npurt.llm.arch.decoder import Head
from npurt.llm.context import Context

PARTS = (1 / 4, 1 / 2)  # of the vocabulary, the cuts that there are
LATEST = 64  # tokens of a text that are looked at
RARE = 1 / 16  # of them may lie behind a cut: more wrong guesses cost more than the cut saves


class CutHead:
    """The output matrix of *model*, or what is left of it where that can be cut.

    Args:
        op: Its name in the ledger.
        norm: Of the norm before it, ``[D]``; the model's own by default.
        eps: Of that norm.
    """

    def __init__(
        self, model: Context, op: str, norm: F32 | None = None, eps: float | None = None
    ) -> None:
        self._model = model
        self._make = functools.partial(model.head, op, norm=norm, eps=eps)
        self._heads: dict[int, Head] = {}
        n_vocab = model.config.n_vocab
        self._cuts = [*(model.cut(int(part * n_vocab)) for part in PARTS), n_vocab]

    def columns(self, text: Sequence[int]) -> int:
        """Return how many tokens may follow *text*: the first so many of the vocabulary."""
        markup = self._model.tokenizer.control
        latest = list(islice((token for token in reversed(text) if token not in markup), LATEST))
        fit = (n for n in self._cuts if sum(t >= n for t in latest) <= RARE * len(latest))
        return next(fit)  # the whole vocabulary, if no other

    def fit(self, text: Sequence[int]) -> Head:
        """Return the matrix with those columns."""
        columns = self.columns(text)
        if columns not in self._heads:
            self._heads[columns] = self._make(columns)
        return self._heads[columns]
