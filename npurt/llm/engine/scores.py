"""Cached log probabilities of prompts, so that a prompt that was scored is not scored again.

A page holds the log probabilities of 64 tokens; the last page of a prompt may have fewer.  The key
of a page is a digest of the salt and of all tokens up to its end.  The least recently used pages
are forgotten first.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from npurt.llm.decode.logprobs import TokenLogprob
from npurt.llm.engine.prefixes import PAGE

MAX_VALUES = 1 << 18  # tokens and alternatives; 24 to 32 MB (tests/llm/engine/test_scores.py)

Scored = list[TokenLogprob]


class Scores:
    """The log probabilities of prompts that were scored before.

    Args:
        maximum: The largest number of tokens and alternatives.
    """

    def __init__(self, maximum: int = MAX_VALUES) -> None:
        self._maximum, self._values = maximum, 0
        self._pages: OrderedDict[bytes, tuple[int, Scored]] = OrderedDict()

    def add(self, tokens: Sequence[int], salt: str, scores: Scored, top: int) -> None:
        """Keep the log probabilities of *tokens* from the second on, with *top* alternatives."""
        for key, start, end in _pages(tokens, salt):
            self._values -= _size(self._pages.pop(key, (0, [])))
            self._pages[key] = page = top, scores[start:end]
            self._values += _size(page)
        while self._values > self._maximum:
            self._values -= _size(self._pages.popitem(last=False)[1])

    def find(self, tokens: Sequence[int], salt: str, top: int) -> Scored:
        """Return the known log probabilities of *tokens* from the second on, without a gap.

        Each has *top* alternatives.
        """
        found: Scored = []
        for key, _, _ in _pages(tokens, salt):
            known, page = self._pages.get(key, (-1, []))
            if known < top:
                break
            self._pages.move_to_end(key)
            found += [replace(score, top=score.top[:top]) for score in page]
        return found


def _size(page: tuple[int, Scored]) -> int:
    """Return the number of tokens and alternatives of *page*."""
    top, scores = page
    return len(scores) * (1 + top)


def _pages(tokens: Sequence[int], salt: str) -> Iterator[tuple[bytes, int, int]]:
    """Yield the key of each page, and the indices of its log probabilities."""
    digest = blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16)
    digest.update(b"\0" + np.asarray(tokens[:1], np.int64).tobytes())
    for start in range(1, len(tokens), PAGE):
        page = tokens[start : start + PAGE]
        digest.update(np.asarray(page, np.int64).tobytes())
        yield digest.digest(), start - 1, start - 1 + len(page)
