"""Parse a completion as a stream into thoughts, answer and function calls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npurt.llm.decode.stops import split_at_stop
from npurt.serve.tools.calls import Call, Format, Schemas

BEGIN, END = "<think>", "</think>"  # tags around a thought
BLANK = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of the model's reasoning before the answer."""

    text: str


Part = Said | Thought | Call


def begins_in_thought(prompt: str) -> bool:
    """Return whether the chat template ended *prompt* with the tag that begins a thought.

    A tag in a user's message is not at the end of the prompt: more markup follows the tag.
    """
    return prompt.rstrip(BLANK).endswith(BEGIN)


class Reader:
    """A streaming parser of one completion.

    Args:
        calls: The format of calls; None: the completion has no calls.
        schemas: The schemas of the functions' parameters.
        thinks: Whether the model writes thoughts.
        within: Whether the completion begins inside a thought.

    Attributes:
        called: Number of calls so far.
    """

    def __init__(
        self, calls: Format | None, schemas: Schemas, *, thinks: bool = False, within: bool = False
    ) -> None:
        self.called = 0
        self._calls = calls
        self._schemas = schemas
        self._held = ""
        self._thinks = thinks
        self._state = "thought" if within and thinks else "begin" if thinks else "text"
        self._bare = calls.bare if calls else ""
        self._fresh = True  # no part was yielded in this state; leading blanks are dropped

    def push(self, text: str) -> Iterator[Part]:
        """Yield the parts that *text* completes."""
        self._held += text
        yield from self._read(False)

    def finish(self) -> Iterator[Part]:
        """Yield the remaining parts at the end of the completion."""
        yield from self._read(True)

    def _read(self, last: bool) -> Iterator[Part]:
        before = None
        while before != (self._state, self._held):
            before = (self._state, self._held)
            yield from getattr(self, f"_in_{self._state}")(last)

    # --- States ---------------------------------------------------------------------------------

    def _in_begin(self, last: bool) -> Iterator[Part]:
        """Detect whether the completion begins with a thought; yield nothing."""
        start = self._held.lstrip(BLANK)
        if start.startswith(BEGIN):
            self._held, self._state = start[len(BEGIN) :], "thought"
        elif last or not BEGIN.startswith(start):
            self._state = "text"
        yield from ()

    def _in_thought(self, last: bool) -> Iterator[Part]:
        if self._fresh:
            self._held = self._held.lstrip(BLANK)
        text, held, ended = split_at_stop(self._held, [END])
        if ended:
            rest = self._held[len(text) + len(END) :]
            self._held, self._state = rest, "text"
            shown = text.rstrip(BLANK)
        else:
            # Hold back trailing blanks: they are dropped if the thought ends after them.
            shown = text + held if last else text.rstrip(BLANK)
            self._held = "" if last else text[len(shown) :] + held
        if shown:
            self._fresh = False
            yield Thought(shown)
        if ended:
            self._fresh = True

    def _in_text(self, last: bool) -> Iterator[Part]:
        if self._fresh and self._thinks:
            self._held = self._held.lstrip(BLANK)
        if self._fresh and self._bare:
            start = self._held.lstrip(BLANK)
            if not start and not last:
                return
            self._bare = self._bare if start.startswith(self._bare) else ""
            if self._bare:
                self._state = "bare"
                return
        starts = [self._calls.start] if self._calls else []
        text, held, found = split_at_stop(self._held, starts)
        if found and self._calls:
            self._held = self._held[len(text) + len(self._calls.start) :]
            self._state = "call"
            text = text.rstrip(BLANK)
        elif last:
            text, self._held = text + held, ""
        else:
            self._held = held
            if self._calls:  # hold back trailing blanks: they are dropped before a call
                kept = text.rstrip(BLANK)
                self._held = text[len(kept) :] + held
                text = kept
        if last and self.called and not text.strip(BLANK):
            text = ""
        if text:
            self._fresh = False
            yield Said(text)

    def _in_call(self, last: bool) -> Iterator[Part]:
        assert self._calls is not None
        first = self._held.find(self._calls.end) if self._calls.end else -1
        at = self._calls.find_end(self._held) if first >= 0 else -1
        if at < 0 and not last:
            return
        self._state = "text"
        found = self._parsed(self._held if at < 0 else self._held[:at])
        if not found:  # not a valid call: yield the text up to the first end marker as answer
            at = first
        whole = len(self._held) if at < 0 else at + len(self._calls.end)
        if not found:
            yield Said(self._calls.start + self._held[:whole])
        self._held = self._held[whole:]
        yield from found

    def _in_bare(self, last: bool) -> Iterator[Part]:
        """Wait for the end of the completion, and parse the whole text as calls or as an answer."""
        if last:
            body, self._held, self._state, self._bare = self._held, "", "text", ""
            found: Sequence[Part] = self._parsed(body) or [Said(body)]
            yield from found

    def _parsed(self, body: str) -> Sequence[Call]:
        """Return the calls in *body*; () if *body* is not a valid call."""
        assert self._calls is not None
        try:
            found = self._calls.parse(body, self._schemas)
        except ValueError:
            return ()
        self.called += len(found)
        return found
