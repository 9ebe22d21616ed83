"""Drafts from the text itself: tokens that followed an earlier occurrence of the latest ones."""

from collections.abc import Iterator, Sequence

from npurt.errors import SettingError
from npurt.llm.spec.drafter import Drafter, DraftToken


class Lookup(Drafter):
    """Finds the latest tokens earlier in the text, and proposes the tokens that followed.

    It searches for the last *longest* tokens first, then for fewer, down to *shortest*.

    It costs nothing and needs no model.  It pays where text is copied, as in edits and summaries.
    It proposes no more tokens than agree before them: a long match is likely to continue for long
    (as in SuffixDecoding, Oliaro et al. 2024), and a match of two tokens says little of the tenth.

    Raises:
        SettingError: Not 1 <= *shortest* <= *longest*.
    """

    name = "lookup"

    def __init__(self, longest: int = 6, shortest: int = 1) -> None:
        if not 1 <= shortest <= longest:
            raise SettingError(
                f"n-grams of {shortest} to {longest} tokens", remedy="use 1 <= shortest <= longest"
            )
        self._lengths = range(longest, shortest - 1, -1)
        self._seen: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # n-gram -> where its latest follower is

    def draft(self, history: Sequence[int], most: int) -> Iterator[DraftToken]:
        """Yield at most *most* tokens that followed the latest earlier occurrence."""
        self._learn(history)
        for length in self._lengths:
            at = self._ends.get(tuple(history[-length:])) if length <= len(history) else None
            if at is not None:
                found = history[at : at + _agreeing(history, at, length, most)]
                yield from ((token, 1.0) for token in found)
                return

    def _learn(self, history: Sequence[int]) -> None:
        """Record the n-grams of *history* that have a follower; forget those of another text."""
        if list(history[: len(self._seen)]) != self._seen:
            self._seen, self._ends = [], {}
        start, self._seen = max(1, len(self._seen)), list(history)  # first: Ctrl-C may come
        for end in range(start, len(history)):
            for length in self._lengths:
                if length <= end:
                    self._ends[tuple(history[end - length : end])] = end


def _agreeing(history: Sequence[int], at: int, known: int, most: int) -> int:
    """Return how many tokens before *at* match the last ones, up to *most*; *known* do already."""
    while known < min(most, at) and history[at - 1 - known] == history[-1 - known]:
        known += 1
    return min(known, most)
