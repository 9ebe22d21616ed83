"""Texts that were evaluated, kept for requests that begin with the same tokens.

An entry is a context that nobody runs any more.  A request begins with a fork of it, which shares
whole pages and copies the part after them, so that reuse is exact to the token.

Entries are found by a radix tree of pages: the key of 64 tokens is a hash of them, of the key of
the tokens before, and of a salt.  Where keys and values are all there is, the entry with the most
equal tokens is used.  States that only go forward are those of an entry's whole text, so an entry
is used only by requests that begin with all of it.

The entry that was used least recently goes first.  Its pages are free when no other text has them.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npurt.llm.session.context import Context
from npurt.llm.spec.assistant import shared

PAGE = 64  # tokens of a key
SPACING = 1024  # tokens of a text for each kept copy of states that only go forward


@dataclass(eq=False, slots=True)
class Entry:
    """A text that is kept.

    Attributes:
        used: A serial number of its latest use.
        fixed: It is not replaced by a longer text.
    """

    context: Context
    salt: str
    used: int
    fixed: bool

    @property
    def tokens(self) -> list[int]:
        """The text."""
        return self.context.state.tokens


class Prefixes:
    """The kept texts of a model.

    Args:
        most: How many there may be.
        recurrent: Whether the model has states that only go forward.

    Attributes:
        most: As given.
    """

    def __init__(self, most: int, *, recurrent: bool) -> None:
        self.most = most
        self._recurrent = recurrent
        self._pages: dict[int, set[Entry]] = {}  # entries by the keys of their pages
        self._entries: set[Entry] = set()
        self._clock = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def find(self, tokens: Sequence[int], salt: str) -> tuple[Entry | None, int, int]:
        """Return the best entry for *tokens*; the last token is always left to be evaluated.

        Returns:
            The entry; how many tokens to fork; how many tokens any entry has in common with
            *tokens*, which is more than can be forked if states only go forward.
        """
        levels = [found for key in _keys(tokens, salt) if (found := self._pages.get(key))]
        candidates = set[Entry]().union(*levels if self._recurrent else levels[-1:])
        best: Entry | None = None
        length = equal = 0
        for entry in candidates:
            if entry.salt != salt:
                continue  # their keys are equal by chance
            same = min(shared(entry.tokens, tokens), len(tokens) - 1)
            usable = same if not self._recurrent or same == len(entry.tokens) else 0
            equal = max(equal, same)
            if usable > length:
                best, length = entry, usable
        return best, length, equal

    def use(self, entry: Entry) -> None:
        """Record that a request began with *entry*."""
        entry.used = next(self._clock)

    def has(self, tokens: Sequence[int], salt: str) -> bool:
        """Return whether an entry is of the same use as one of *tokens*."""
        entry, length, _ = self.find([*tokens, -1], salt)
        return entry is not None and length == len(tokens)

    def add(self, context: Context, salt: str, *, fixed: bool = False, prompt: int = 0) -> None:
        """Keep the text of *context*, which is the cache's from now on; or release it.

        Args:
            fixed: Keep it beside a longer text.  Else that replaces it, at a distance of less than
                `SPACING` where states only go forward.
            prompt: How many tokens of the text are its prompt.  A prompt is kept beside its text,
                because clients may send an answer back in other tokens, or without its thoughts.
        """
        tokens = context.state.tokens
        if not tokens or not self.most or self.has(tokens, salt):
            context.release()
            return
        for other in self._before(tokens, salt):
            near = len(tokens) - len(other.tokens) < SPACING and not other.fixed
            if (near and len(other.tokens) != prompt) or not self._recurrent:
                self._drop(other)
        while len(self._entries) >= self.most:
            self.evict()
        self._entries.add(entry := Entry(context, salt, next(self._clock), fixed))
        for key in _keys(tokens, salt):
            self._pages.setdefault(key, set()).add(entry)

    def _before(self, tokens: Sequence[int], salt: str) -> list[Entry]:
        """Return the entries that *tokens* begin with."""
        root = self._pages.get(next(_keys(tokens, salt)), set())
        texts = ((entry, len(entry.tokens)) for entry in root if entry.salt == salt)
        return [entry for entry, length in texts if entry.tokens == tokens[:length]]

    def evict(self) -> bool:
        """Forget the entry that was used least recently; return False if there is none."""
        if not self._entries:
            return False
        self._drop(min(self._entries, key=lambda entry: entry.used))
        return True

    def _drop(self, entry: Entry) -> None:
        self._entries.remove(entry)
        for key in _keys(entry.tokens, entry.salt):
            self._pages[key].discard(entry)
            if not self._pages[key]:
                del self._pages[key]
        entry.context.release()

    def clear(self) -> None:
        """Forget all entries."""
        while self.evict():
            pass


def _keys(tokens: Sequence[int], salt: str) -> Iterator[int]:
    """Yield the key of no tokens, then that of each whole page."""
    key = hash(salt)
    yield key
    for start in range(0, len(tokens) - PAGE + 1, PAGE):
        key = hash((key, tuple(tokens[start : start + PAGE])))
        yield key
