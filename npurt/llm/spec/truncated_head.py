"""The output matrix, cut to the tokens that a text is made of: what a draft need not read.

A vocabulary is numbered as its tokens were merged, frequent ones first, so its first quarter holds
nearly all of most texts; a draft that never guesses the rest reads that much less, and is seldom
wrong for it.  (FR-Spec, Zhao et al. 2025, cuts by a list of frequent tokens instead.)  A text with
many tokens from behind a cut gets more of the matrix.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from npurt.llm.arch.decoder import Head
from npurt.llm.session.context import Context

PARTS = (1 / 4, 1 / 2, 1)  # of the vocabulary, the cuts that there are
LATEST = 64  # tokens of a text that are looked at
RARE = 1 / 16  # of them may lie behind a cut: more wrong guesses cost more than the cut saves


class CutHead:
    """The output matrix of a model, cut to what a text needs where it can be.

    Args:
        model: The model.
        make: Makes a head of so many columns, once for each cut that is used.

    Attributes:
        nbytes: Of the least cut, which serves most texts.
    """

    def __init__(self, model: Context, make: Callable[[int], Head]) -> None:
        cuts = [model.output_matrix(int(part * model.config.n_vocab)) for part in PARTS]
        self.nbytes = cuts[0].nbytes
        self._columns = [cut.n for cut in cuts]
        self._markup = model.tokenizer.control
        self._make = make
        self._heads: dict[int, Head] = {}

    def columns(self, text: Sequence[int]) -> int:
        """Return how many tokens may follow *text*: the first so many of the vocabulary."""
        words = (token for token in reversed(text) if token not in self._markup)
        latest = list(islice(words, LATEST))
        rare = RARE * len(latest)
        return next(n for n in self._columns if sum(token >= n for token in latest) <= rare)

    def fit(self, text: Sequence[int]) -> Head:
        """Return the head with those columns."""
        columns = self.columns(text)
        if columns not in self._heads:
            self._heads[columns] = self._make(columns)
        return self._heads[columns]
