"""A truncated output matrix for drafts: only the rows of frequent tokens.

Vocabularies number tokens in the order of their merges, frequent tokens first.  Most texts consist
of tokens from the first quarter.  A draft that proposes only those reads less of the matrix, and is
seldom wrong because of it.  (FR-Spec, Zhao et al. 2025, has a list of frequent tokens instead.)  A
text with many other tokens gets more rows of the matrix.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from npurt.llm.arch.head import Head
from npurt.llm.session.model import Model

PARTS = (1 / 4, 1 / 2, 1)  # shares of the vocabulary that a head may have
LATEST = 64  # tokens of a text that decide which part it gets
RARE = (
    1 / 16
)  # share of them that may lie beyond the part: more wrong drafts cost more than it saves


class TruncatedHead:
    """The output matrix of a model, truncated to the tokens that a text needs.

    Args:
        model: The model.
        make: A function that makes a head of a number of columns; it runs once for each part.

    Attributes:
        nbytes: The size of the smallest part, which suffices for most texts.
    """

    def __init__(self, model: Model, make: Callable[[int], Head]) -> None:
        cuts = [model.output_matrix(int(part * model.config.n_vocab)) for part in PARTS]
        self.nbytes = cuts[0].nbytes
        self._columns = [cut.n for cut in cuts]
        self._markup = model.tokenizer.control
        self._make = make
        self._heads: dict[int, Head] = {}

    def columns(self, text: Sequence[int]) -> int:
        """Return how many tokens of the vocabulary, from the first on, may follow *text*."""
        words = (token for token in reversed(text) if token not in self._markup)
        latest = list(islice(words, LATEST))
        rare = RARE * len(latest)
        return next(n for n in self._columns if sum(token >= n for token in latest) <= rare)

    def fit(self, text: Sequence[int]) -> Head:
        """Return the head for *text*."""
        columns = self.columns(text)
        if columns not in self._heads:
            self._heads[columns] = self._make(columns)
        return self._heads[columns]
