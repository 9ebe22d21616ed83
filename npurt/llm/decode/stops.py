"""Check the argument stop, and find stop texts in the text of a completion."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from npurt.errors import SettingError, brief
from npurt.llm.text.tokenizer import Tokenizer
from npurt.llm.text.vocabulary import MAX_TOKENS
from npurt.runtime.open.arguments import integer, listed


class TextStream:
    """Decodes tokens to text one after another, up to the first stop text.

    Args:
        special: Whether the text contains control tokens.

    Attributes:
        stopped: Whether a stop text was found.  It ends the text.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str], *, special: bool = False
    ) -> None:
        self.stopped = False
        self._stream = tokenizer.stream(special=special, continued=True)
        self._stops = stops
        self._held = ""
        self._final = 0  # characters of final text

    @property
    def length(self) -> int:
        """The number of characters so far, including characters that are not final yet."""
        return self._final + len(self._held)

    def push(self, token: int) -> str:
        """Add a token; return the text that is final now.

        Final text consists of whole characters that cannot belong to a stop text.
        """
        return self._add(self._stream.push(token))

    def finish(self) -> str:
        """Return the rest of the text.  No token may be added afterwards."""
        text = self._add(self._stream.finish())
        return text if self.stopped else text + self._held

    def _add(self, piece: str) -> str:
        text, self._held, self.stopped = split_at_stop(self._held + piece, self._stops)
        self._final += len(text)
        return text


def split_stops(stop: Any) -> tuple[tuple[str, ...], frozenset[int]]:
    """Return the texts and the token ids in *stop*: a text, an id, several of these, or None.

    Raises:
        SettingError: A stop text is empty, or a member is neither a str nor a token id.
    """
    single = isinstance(stop, str | bytes) or not isinstance(stop, Iterable)
    several = [] if single else listed("stop", stop, "a text, an id, or a list of these")
    given = [] if stop is None else [stop] if single else several
    ids: list[Any] = []
    texts: list[Any] = []
    for one in given:
        (texts if isinstance(one, bool) or not isinstance(one, Integral) else ids).append(one)
    return stop_texts(texts), frozenset(integer("a stop id", one, 0, MAX_TOKENS - 1) for one in ids)


def stop_texts(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the texts in *stop*; an empty tuple for None.

    Raises:
        SettingError: A stop text is empty, or not a str.
    """
    if stop is None:
        return ()
    single = isinstance(stop, str) or not isinstance(stop, Iterable)
    texts = (stop,) if single else tuple(listed("stop", stop, "a text, or a list of texts"))
    for text in texts:
        if not isinstance(text, str):
            raise SettingError(
                f"a stop text is {brief(text)}", remedy="pass a str, a token id, or a list of them"
            )
        if not text:
            raise SettingError("a stop text is empty", remedy="leave it out")
    return texts


def split_at_stop(text: str, stops: Sequence[str]) -> tuple[str, str, bool]:
    """Return the final text, the text to hold back, and whether *text* has a stop text.

    The text to hold back is the longest end of *text* with which a stop text begins.
    """
    if not stops:
        return text, "", False
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    if found:
        return text[: min(found)], "", True
    tails = [
        size
        for stop in stops
        for size in range(1, min(len(stop), len(text) + 1))
        if text.endswith(stop[:size])
    ]
    keep = len(text) - max(tails, default=0)
    return text[:keep], text[keep:], False
