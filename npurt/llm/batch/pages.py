"""How many pages of keys and values are free, and how many texts need."""

import math
from collections.abc import Iterable

from npurt.llm.batch.prefixes import Entry
from npurt.llm.batch.sequence import Sequence
from npurt.llm.session.model import Model
from npurt.segment import Room


class Pages:
    """The pages of a model.

    Attributes:
        claimed: How many pages each text will take in the present step.
    """

    def __init__(self, model: Model) -> None:
        self.claimed: dict[Sequence, int] = {}
        self._model = model
        room = self.room()
        self._page = room.page if room else 0

    def room(self, without: Iterable[Entry] = ()) -> Room | None:
        """Return the pages that there are; None where each text has memory of its own.

        Pages that only the kept prefixes *without* have count as free.
        """
        return self._model.executor.room([each.context.state.sequence for each in without])

    def free(self, without: Iterable[Entry] = ()) -> float:
        """Return the number of free pages that the step does not need yet; see `room`."""
        room = self.room(without)
        return room.free - sum(self.claimed.values()) if room else math.inf

    def count(self, length: int) -> int:
        """Return the number of pages of a text of so many tokens."""
        return -(-length // self._page) if self._page else 0

    def growth(self, text: Sequence, rows: int) -> int:
        """Return how many pages *text* needs for *rows* more tokens."""
        length = text.context.n_tokens if text.context else 0
        return self.count(length + rows) - self.count(length)
