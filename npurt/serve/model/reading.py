"""Read the text of a model as it comes: what it thinks, what it says, what it calls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npurt.llm.decode.stops import split_at_stop
from npurt.serve.tools.calls import Call, Format, Schemas

BEGIN, END = "<think>", "</think>"  # around what a model thinks
BLANK = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of what the model thinks before it answers."""

    text: str


Part = Said | Thought | Call


def begins_in_thought(prompt: str) -> bool:
    """Return whether *prompt* ends with the beginning of a thought, which the template wrote.

    What a user writes is not at the end: the markup of the answer follows it.
    """
    return prompt.rstrip(BLANK).endswith(BEGIN)


class Reader:
    """Takes a text apart.

    Args:
        calls: How calls are written; None: there are none.
        schemas: Of the functions.
        thinks: Whether the model can think aloud.
        within: Whether the text begins in a thought.

    Attributes:
        called: Calls so far.
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
        self._fresh = True  # blank text is not shown yet

    def push(self, text: str) -> Iterator[Part]:
        """Yield the parts that *text* completes."""
        self._held += text
        yield from self._read(False)

    def finish(self) -> Iterator[Part]:
        """Yield what is left at the end of the text."""
        yield from self._read(True)

    def _read(self, last: bool) -> Iterator[Part]:
        before = None
        while before != (self._state, self._held):
            before = (self._state, self._held)
            yield from getattr(self, f"_in_{self._state}")(last)

    # --- States ---------------------------------------------------------------------------------

    def _in_begin(self, last: bool) -> Iterator[Part]:
        """Find out whether the text begins with a thought."""
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
            shown = text + held if last else text.rstrip(BLANK)  # blank text may be the last
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
            if self._calls:  # blank text before calls is not shown
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
        if not found:  # it only looked like a call, up to what looked like its end
            at = first
        whole = len(self._held) if at < 0 else at + len(self._calls.end)
        if not found:
            yield Said(self._calls.start + self._held[:whole])
        self._held = self._held[whole:]
        yield from found

    def _in_bare(self, last: bool) -> Iterator[Part]:
        """Wait for the end: only then is it known whether all of the text is a call."""
        if last:
            body, self._held, self._state, self._bare = self._held, "", "text", ""
            found: Sequence[Part] = self._parsed(body) or [Said(body)]
            yield from found

    def _parsed(self, body: str) -> Sequence[Call]:
        """Return the calls that *body* is; none if it only looks like one."""
        assert self._calls is not None
        try:
            found = self._calls.parse(body, self._schemas)
        except ValueError:
            return ()
        self.called += len(found)
        return found
