"""Drafts from the text itself: what followed the last time the same few tokens appeared."""

from collections.abc import Iterator, Sequence

from npurt.errors import SettingError
from npurt.llm.spec.drafter import Drafter, Guess


class Lookup(Drafter):
    """Finds the longest of the last *longest* .. *shortest* tokens earlier in the text.

    Costs nothing and needs no model: it pays where text is copied, such as edits and summaries.
    It guesses no more tokens than agree before them: what was the same for long stays the same for
    long (as in SuffixDecoding, Oliaro et al. 2024), and two equal tokens say little of the tenth.

    Raises:
        SettingError: The lengths make no sense.
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

    def guesses(self, history: Sequence[int], most: int) -> Iterator[Guess]:
        """Yield what followed the latest earlier occurrence, at most *most* tokens."""
        self._learn(history)
        for length in self._lengths:
            at = self._ends.get(tuple(history[-length:])) if length <= len(history) else None
            if at is not None:
                found = history[at : at + _agreeing(history, at, length, most)]
                yield from ((token, 1.0) for token in found)
                return

    def _learn(self, history: Sequence[int]) -> None:
        """Note the n-grams that have a follower; those that *history* no longer has go."""
        if list(history[: len(self._seen)]) != self._seen:
            self._seen, self._ends = [], {}
        start, self._seen = max(1, len(self._seen)), list(history)  # first: Ctrl-C may come
        for end in range(start, len(history)):
            for length in self._lengths:
                if length <= end:
                    self._ends[tuple(history[end - length : end])] = end


def _agreeing(history: Sequence[int], at: int, known: int, most: int) -> int:
    """Return how many tokens before *at* equal the last, up to *most*; *known* of them do."""
    while known < min(most, at) and history[at - 1 - known] == history[-1 - known]:
        known += 1
    return min(known, most)
