"""Count the free pages of the KV cache, and the pages that sequences need."""

import math
from collections.abc import Iterable

from npurt.device.segment import Capacity
from npurt.llm.engine.prefixes import Entry
from npurt.llm.engine.sequence import Sequence
from npurt.llm.session.loaded_model import LoadedModel


class Pages:
    """The pages of a model's KV cache.

    Attributes:
        claimed: The number of pages that each sequence will take in the present step.
    """

    def __init__(self, model: LoadedModel) -> None:
        self.claimed: dict[Sequence, int] = {}
        self._model = model
        capacity = self.capacity()
        self._page = capacity.page if capacity else 0

    def capacity(self, without: Iterable[Entry] = ()) -> Capacity | None:
        """Return the numbers of pages; None if the device has no pages.

        Pages that belong only to the cached prefixes *without* count as free.
        """
        return self._model.executor.capacity([each.context.state.sequence for each in without])

    def free(self, without: Iterable[Entry] = ()) -> float:
        """Return how many free pages no sequence has claimed in this step; see `capacity`.

        It is infinite if the device has no pages.
        """
        capacity = self.capacity(without)
        return capacity.free - sum(self.claimed.values()) if capacity else math.inf

    def count(self, length: int) -> int:
        """Return the number of pages of a sequence of *length* tokens."""
        return -(-length // self._page) if self._page else 0

    def growth(self, sequence: Sequence, rows: int) -> int:
        """Return the number of pages that *sequence* needs for *rows* more tokens."""
        length = sequence.context.n_tokens if sequence.context else 0
        return self.count(length + rows) - self.count(length)
