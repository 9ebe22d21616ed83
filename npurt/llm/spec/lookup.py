"""Draft from the sequence itself: the tokens after an earlier occurrence of the last tokens."""

from collections.abc import Iterator, Sequence

from npurt.errors import SettingError
from npurt.llm.spec.drafter import Drafter, DraftToken


class Lookup(Drafter):
    """Finds an earlier occurrence of the last tokens, and proposes the tokens that followed it.

    The search begins with the last *longest* tokens, then uses fewer, down to *shortest*.

    Lookup costs nearly no time and needs no model.  It pays when text is copied, as in edits and
    summaries.  The number of draft tokens is at most the length of the match: a long match is
    likely to continue for long (as in SuffixDecoding, Oliaro et al. 2024), but a match of two
    tokens does not predict the tenth token.

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
        self._ends: dict[
            tuple[int, ...], int
        ] = {}  # n-gram: index of the token after its latest occurrence

    def draft(self, history: Sequence[int], maximum: int) -> Iterator[DraftToken]:
        """Yield up to *maximum* tokens that followed the latest earlier occurrence."""
        self._learn(history)
        for length in self._lengths:
            at = self._ends.get(tuple(history[-length:])) if length <= len(history) else None
            if at is not None:
                found = history[at : at + _agreeing(history, at, length, maximum)]
                yield from ((token, 1.0) for token in found)
                return

    def _learn(self, history: Sequence[int]) -> None:
        """Record the n-grams of *history* with a next token; clear other sequences' n-grams."""
        if list(history[: len(self._seen)]) != self._seen:
            self._seen, self._ends = [], {}
        start, self._seen = (
            max(1, len(self._seen)),
            list(history),
        )  # set first, because Ctrl-C may interrupt the loop
        for end in range(start, len(history)):
            for length in self._lengths:
                if length <= end:
                    self._ends[tuple(history[end - length : end])] = end


def _agreeing(history: Sequence[int], at: int, known: int, maximum: int) -> int:
    """Return how many tokens before *at* equal the last tokens of *history*, up to *maximum*.

    *known* tokens are known to match.
    """
    while known < min(maximum, at) and history[at - 1 - known] == history[-1 - known]:
        known += 1
    return min(known, maximum)
