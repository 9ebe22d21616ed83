"""The prefix cache: ended sequences, for requests that begin with the same tokens.

An entry is a context that no sequence runs any more.  A new sequence begins with a fork of this
context: it shares whole pages, and copies the partial page after them.  So prefixes of any length
can be reused.

Entries are found by hashes of their pages: the key of a page of 64 tokens is a hash of its tokens,
of the key of the tokens before it, and of a salt.  If the model's only state is the KV cache, the
entry with the longest common prefix is used.  A recurrent state exists only at the end of an entry,
so an entry of a recurrent model is used only by requests that begin with all its tokens.

The least recently used entry is evicted first.  Its pages become free when no other sequence
shares them.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npurt.llm.session.context import Context
from npurt.llm.spec.assistant import shared

PAGE = 64  # tokens of a key
SPACING = 1024  # least tokens between two cached recurrent states of one sequence


@dataclass(eq=False, slots=True)
class Entry:
    """A cached prefix.

    Attributes:
        context: The context with the tokens and their state.
        salt: The salt of the request; see `Prefixes.find`.
        used: A serial number of the latest use.
        fixed: Whether the entry is kept when a longer sequence with this prefix is added.
    """

    context: Context
    salt: str
    used: int
    fixed: bool

    @property
    def tokens(self) -> list[int]:
        """The tokens of the prefix."""
        return self.context.state.tokens


class Prefixes:
    """The cached prefixes of a model.

    Args:
        maximum: The largest number of entries.
        recurrent: Whether the model has recurrent states.

    Attributes:
        maximum: As in the arguments.
    """

    def __init__(self, maximum: int, *, recurrent: bool) -> None:
        self.maximum = maximum
        self._recurrent = recurrent
        self._pages: dict[int, set[Entry]] = {}  # entries by the keys of their pages
        self._entries: set[Entry] = set()
        self._clock = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def find(self, tokens: Sequence[int], salt: str) -> tuple[Entry | None, int, int]:
        """Return the entry with the longest usable prefix of *tokens*.

        At least the last token is left to be evaluated.  Only entries with the same *salt* match.

        Returns:
            The entry, or None; the number of tokens to fork; the longest common prefix of any entry
            with *tokens*, which can be longer than the usable one if the model is recurrent.
        """
        levels = [found for key in _keys(tokens, salt) if (found := self._pages.get(key))]
        candidates = set[Entry]().union(*levels if self._recurrent else levels[-1:])
        best: Entry | None = None
        length = equal = 0
        for entry in candidates:
            if entry.salt != salt:
                continue  # a hash collision
            same = min(shared(entry.tokens, tokens), len(tokens) - 1)
            usable = same if not self._recurrent or same == len(entry.tokens) else 0
            equal = max(equal, same)
            if usable > length:
                best, length = entry, usable
        return best, length, equal

    def use(self, entry: Entry) -> None:
        """Record a use of *entry*."""
        entry.used = next(self._clock)

    def has(self, tokens: Sequence[int], salt: str) -> bool:
        """Return whether a request could reuse all of *tokens* from one entry."""
        entry, length, _ = self.find([*tokens, -1], salt)
        return entry is not None and length == len(tokens)

    def add(self, context: Context, salt: str, *, fixed: bool = False, prompt: int = 0) -> None:
        """Add *context* to the cache; release it if the cache has its tokens already.

        The cache owns *context* from now on.

        Args:
            fixed: Keep the entry when a longer sequence is added.  Otherwise the longer one
                replaces it; for a recurrent model, only at a distance below `SPACING`.
            prompt: The number of prompt tokens.  The entry of a prompt is not replaced by the entry
                of the prompt with its completion, because clients may send the completion back with
                other tokens, or without its reasoning.
        """
        tokens = context.state.tokens
        if not tokens or not self.maximum or self.has(tokens, salt):
            context.release()
            return
        for other in self._before(tokens, salt):
            near = len(tokens) - len(other.tokens) < SPACING and not other.fixed
            if (near and len(other.tokens) != prompt) or not self._recurrent:
                self._drop(other)
        while len(self._entries) >= self.maximum:
            self.evict()
        self._entries.add(entry := Entry(context, salt, next(self._clock), fixed))
        for key in _keys(tokens, salt):
            self._pages.setdefault(key, set()).add(entry)

    def _before(self, tokens: Sequence[int], salt: str) -> list[Entry]:
        """Return the entries whose tokens are a prefix of *tokens*."""
        root = self._pages.get(next(_keys(tokens, salt)), set())
        texts = ((entry, len(entry.tokens)) for entry in root if entry.salt == salt)
        return [entry for entry, length in texts if entry.tokens == tokens[:length]]

    def evict(self) -> bool:
        """Release the least recently used entry; return False if there is none."""
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
        """Release all entries."""
        while self.evict():
            pass


def _keys(tokens: Sequence[int], salt: str) -> Iterator[int]:
    """Yield the key of the empty prefix, then the key of each whole page."""
    key = hash(salt)
    yield key
    for start in range(0, len(tokens) - PAGE + 1, PAGE):
        key = hash((key, tuple(tokens[start : start + PAGE])))
        yield key
