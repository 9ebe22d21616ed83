"""A truncated output matrix for drafts, which has only the rows of frequent tokens.

Vocabularies number tokens in the order of their merges, so frequent tokens come first.  Most texts
consist of tokens from the first quarter.  A draft that proposes only these tokens reads less of the
matrix, and few tokens are rejected because of it.  (FR-Spec, Zhao et al. 2025, uses a list of
frequent tokens instead.)  For a sequence with many other tokens, the head has more rows.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from npurt.device.device import F32
from npurt.llm.session.loaded_model import LoadedModel

Head = Callable[[F32], F32]  # `LoadedModel.head`
PARTS = (1 / 4, 1 / 2, 1)  # possible sizes of a head, as fractions of the vocabulary
LATEST = 64  # last tokens of a sequence that determine the size of the head
RARE = (
    1 / 16
)  # largest fraction of these tokens outside the head: more rejected drafts would cost more


class TruncatedHead:
    """The output matrix of a model, truncated to the tokens that a sequence needs.

    Args:
        model: The model.
        make: A function that returns a head with a given number of columns; called once for each
            size.

    Attributes:
        nbytes: Bytes of the smallest head, which suffices for most sequences.
    """

    def __init__(self, model: LoadedModel, make: Callable[[int], Head]) -> None:
        cuts = [model.output_matrix(int(part * model.config.n_vocab)) for part in PARTS]
        self.nbytes = cuts[0].nbytes
        self._columns = [cut.n for cut in cuts]
        self._markup = model.tokenizer.control
        self._make = make
        self._heads: dict[int, Head] = {}

    def columns(self, text: Sequence[int]) -> int:
        """Return the number of columns of the head for the sequence *text*."""
        words = (token for token in reversed(text) if token not in self._markup)
        latest = list(islice(words, LATEST))
        rare = RARE * len(latest)
        return next(n for n in self._columns if sum(token >= n for token in latest) <= rare)

    def fit(self, text: Sequence[int]) -> Head:
        """Return the head for the sequence *text*."""
        columns = self.columns(text)
        if columns not in self._heads:
            self._heads[columns] = self._make(columns)
        return self._heads[columns]
