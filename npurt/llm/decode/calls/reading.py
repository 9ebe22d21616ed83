"""Parse a completion as a stream into thoughts, answer and function calls."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npurt.llm.decode.calls.format import (
    CallFormat,
    CallPart,
    FunctionCall,
    Growth,
    Schemas,
    objects,
)
from npurt.llm.decode.calls.growing import json_growth
from npurt.llm.decode.calls.loose import FENCED, TAG, TAGS, JsonEnd, Look, calls_of, first, look
from npurt.llm.decode.stops import split_at_stop

BEGIN, END = "<think>", "</think>"  # tags around a thought
BLANK = " \t\r\n"
# Characters of arguments from which on a call is yielded in pieces.  A shorter call is parsed as a
# whole, so a text that turns out to be no call remains a text.
GROWS = 64
MAX_QUOTATIONS = 16  # texts that look like calls but are none, before the search for calls ends
# The beginning of arguments that are the schema of a function's parameters.
DESCRIBED = re.compile(r'"parameters"\s*:\s*\{\s*"(?:type|properties|required|\$schema)"\s*:')
LINE = re.compile(r"(?:\A|(?<=\n))[ \t]*(?=[`<{\[])")  # the beginning of a line with a call


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of the model's reasoning before the answer."""

    text: str


Part = Said | Thought | CallPart


def begins_in_thought(prompt: str) -> bool:
    """Return whether the chat template ended *prompt* with the tag that begins a thought.

    A tag in a user's message is not at the end of the prompt: more markup follows the tag.
    """
    return prompt.rstrip(BLANK).endswith(BEGIN)


class Reader:
    """A streaming parser of one completion.

    Calls are in the model's format, or in one of the forms in `loose`.

    Args:
        calls: The format of calls; None: the completion has no calls.
        schemas: The schemas of the functions' parameters.
        thinks: Whether the model writes thoughts.
        within: Whether the completion begins inside a thought.
        forced: The functions of which a grammar forces a call; the completion is one call.

    Attributes:
        called: Number of calls so far.
        ended: Number of calls whose arguments are complete.
    """

    def __init__(
        self,
        calls: CallFormat | None,
        schemas: Schemas,
        *,
        thinks: bool = False,
        within: bool = False,
        forced: Sequence[str] = (),
    ) -> None:
        self.called = 0
        self.ended = 0
        self._calls = calls
        self._schemas = schemas
        self._forced = forced
        self._held = ""
        self._thinks = thinks
        self._state = "thought" if within and thinks else "begin" if thinks else "text"
        if forced:
            self._state = "forced"
        self._bare = calls.bare if calls else ""
        self._fresh = True  # no part was yielded in this state; leading blanks are dropped
        self._new_line = True  # what follows is at the beginning of a line
        self._said = False  # the answer has text besides calls
        self._cut = False  # the end of the completion cut it off
        self._opening = ""  # the text from the beginning of a loose call up to its JSON
        self._fence, self._closing_tag = False, ""  # of a loose call
        self._json_end = JsonEnd()
        self._quoted, self._quotations = "", 0
        self._inner_parts: list[Part] = []  # of the text that may be a quotation
        self._growth: Growth | None = None
        self._grown = 0  # calls in the held text that were yielded already
        self._grown_to = 0  # the index of the end of their arguments

    def push(self, text: str) -> Iterator[Part]:
        """Yield the parts that *text* completes."""
        self._held += text
        yield from self._read(False)

    def finish(self, *, cut: bool = False) -> Iterator[Part]:
        """Yield the remaining parts at the end of the completion.

        Args:
            cut: Whether a limit of tokens cut the completion off.
        """
        self._cut = cut
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
            self._fresh = self._new_line = True

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
        at, kind, opening = self._loose(len(text) if found else len(self._held), last)
        if kind is not Look.NO:
            text, rest = self._held[:at], self._held[at:]
            kept = text.rstrip(BLANK)
            self._held = text[len(kept) :] + rest
            if kind is Look.YES:
                self._opened(self._held, len(self._held) - len(rest) + opening, kept)
            text = kept
        elif found and self._calls:
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
            yield self._say(text)

    def _in_call(self, last: bool) -> Iterator[Part]:
        assert self._calls is not None
        if self._growth or not self._calls.end or self._calls.end not in self._held:
            yield from self._grow(GROWS)
        if self._state != "call" or (self._growth and not last):
            return
        first = self._held.find(self._calls.end) if self._calls.end else -1
        at = self._calls.find_end(self._held) if first >= 0 else -1
        if at < 0 and not last:
            return
        if at < 0 and (self._growth or self._cut):
            yield from self._cut_off(self._calls.start)
            return
        found = self._parsed(self._held if at < 0 else self._held[:at])
        valid = found or self._grown
        if not valid:  # not a valid call: yield the text up to the first end marker as answer
            at = first
        whole = len(self._held) if at < 0 else at + len(self._calls.end)
        if not valid:
            yield self._say(self._calls.start + self._held[:whole])
        yield from self._emitted(found)
        self._ended(self._held[whole:], "text")

    def _in_bare(self, last: bool) -> Iterator[Part]:
        """Wait for the end of the completion, and parse the whole text as calls or as an answer."""
        if last:
            body, self._bare = self._held, ""
            found = self._parsed(body)
            yield from self._emitted(found)
            if not found:
                yield self._say(body)
            self._ended("", "text")

    def _in_forced(self, last: bool) -> Iterator[Part]:
        if len(self._forced) == 1 and not self.called:  # the function is known before any token
            yield self._begun(self._forced[0])
        if not self.ended:
            yield from self._grow(0)
        if last:
            found = () if self._grown or self._growth or self._cut else self._parsed(self._held)
            for call in found[:1]:
                if not self.called:
                    yield self._begun(call.name)
                yield CallPart(0, call.name, call.arguments)
                self.ended = 1
            if not self.called and not self._cut:
                yield self._say(self._held)
            self._ended("", "text")

    # --- Calls in other forms -------------------------------------------------------------------

    def _loose(self, before: int, last: bool) -> tuple[int, Look, int]:
        """Return where a loose call begins in the held text, whether it does, and its opening.

        Args:
            before: The index before which the call begins.
        """
        if self._calls is None or self._quotations > MAX_QUOTATIONS:
            return 0, Look.NO, 0
        for found in LINE.finditer(self._held):
            at = found.end()
            if at >= before:
                break
            if found.start() or self._new_line:
                kind, opening = look(self._held[at:], self._schemas)
                if kind is Look.YES or (kind is Look.WAIT and not last):
                    return at, kind, opening
        return 0, Look.NO, 0

    def _opened(self, text: str, at: int, before: str) -> None:
        """Begin a loose call, whose JSON is at index *at* of *text*; *before* is text before it."""
        if self._said or before:
            self._state, self._quoted, self._inner_parts = "quoted", "", []
            self._inner = Reader(self._calls, self._schemas)
            return
        self._opening, self._held = text[:at], text[at:]
        self._state, self._json_end = "loose", JsonEnd()
        self._fence |= "```" in self._opening
        if tag := TAG.search(self._opening):
            self._closing_tag = f"</{tag[1]}>"

    def _in_loose(self, last: bool) -> Iterator[Part]:
        end = -1 if self._growth else self._json_end.find(self._held)
        if end < 0 and not DESCRIBED.search(self._held):
            before = self._grown
            yield from self._grow(GROWS)
            if self._state != "loose" or self._grown > before:
                return  # `_read` looks for the end of the JSON again
        if end < 0:
            if last and (self._growth or self._grown or self._cut):
                yield from self._cut_off(self._opening)
            elif last:
                yield self._say(self._opening + self._held)
                self._ended("", "text")
            return
        try:
            found = first(self._held[:end], self._schemas)[self._grown :]
        except ValueError:
            if not self._grown:
                yield self._say(self._opening + self._held[:end])
                self._ended(self._held[end:], "text")
                return
            found = []
        yield from self._emitted(found, after=0)
        self._ended(self._held[end:], "closing")

    def _in_closing(self, last: bool) -> Iterator[Part]:
        """Drop the closing tag and fence of a loose call, and separators before the next call."""
        yield from ()
        start = self._held.lstrip(BLANK)
        tags = [f"</{tag}>" for tag in TAGS] if self._closing_tag else []  # not always the same
        closings = [*tags, *["```"] * self._fence]
        while closing := next((each for each in closings if start.startswith(each)), ""):
            self._held = start[len(closing) :]
            start = self._held.lstrip(BLANK)
            if closing == "```":
                self._fence = False
                closings.remove(closing)
            else:
                self._closing_tag = ""
                closings = [each for each in closings if each == "```"]
        if not last and any(each.startswith(start) for each in closings):
            return
        start = start.lstrip(BLANK + ",;")
        kind = look(start, self._schemas)[0] if start else Look.WAIT
        if kind is Look.WAIT and not last:
            return
        if kind is Look.YES:
            self._held = start
        else:
            self._fence, self._closing_tag = False, ""
        self._state = "text"

    def _in_quoted(self, last: bool) -> Iterator[Part]:
        """Read a call after other text: if no text follows it, it is a call, else a quotation."""
        parts = self._inner_parts
        parts += self._inner.push(self._held)
        if last:
            parts += self._inner.finish(cut=self._cut)
        self._quoted += self._held
        self._held = ""
        open_ = last and not self._cut and self._inner.ended < self._inner.called
        if open_ or any(isinstance(part, Said) for part in parts):
            self._quotations += 1
            at = 1 + min(i for i in map(self._quoted.find, "{[") if i >= 0)
            yield self._say(self._quoted[:at])
            self._ended(self._quoted[at:], "text")
            self._new_line = False
        elif last:
            for part in parts:
                assert isinstance(part, CallPart)
                yield CallPart(self.called + part.number, part.name, part.arguments)
            self.called += self._inner.called
            self.ended += self._inner.ended
            self._ended("", "text")

    # --- Pieces ---------------------------------------------------------------------------------

    def _say(self, text: str) -> Said:
        self._fresh = False
        self._said |= bool(text.strip(BLANK))
        self._new_line = text.endswith("\n")
        return Said(text)

    def _begun(self, name: str) -> CallPart:
        self.called += 1
        return CallPart(self.called - 1, name, "")

    def _emitted(
        self, calls: Sequence[FunctionCall], after: int | None = None
    ) -> Iterator[CallPart]:
        """Yield complete calls, without those that were yielded in pieces."""
        for call in calls[self._grown if after is None else after :]:
            yield CallPart(self.called, call.name, call.arguments)
            self.called += 1
            self.ended += 1

    def _ended(self, rest: str, state: str) -> None:
        """End a call or what looked like one; *rest* is the text after it."""
        self._held, self._state = rest, state
        self._growth, self._grown, self._grown_to = None, 0, 0
        self._new_line = True

    def _next_growth(self) -> Growth | None:
        """Return the growth of the next call of a listed function in the held text."""
        native = self._state == "call" and self._calls
        find = self._calls.growth if native and self._calls else json_growth
        growth = find(self._held, self._grown_to)
        return growth if growth and growth.name in self._schemas else None

    def _grow(self, least: int) -> Iterator[Part]:
        """Yield a piece of a call's arguments; begin with more than *least* characters of them."""
        if self._growth is None:
            growth = self._next_growth()
            if growth is None or len(self._held) - growth.start <= least:
                return
            self._growth = growth
            if self._state != "forced" or not self.called:
                yield self._begun(growth.name)
        growth = self._growth
        before, rest = self._held[: growth.start], self._held[growth.start :]
        piece, used, progress = growth.take(rest, self._schemas)
        if piece:
            yield CallPart(self.called - 1, growth.name, piece)
        if progress == "broken":  # the arguments so far were yielded; the rest is text
            self._ended(rest[used:], "text")
        elif progress == "end":
            self._held = before + growth.stub + rest[used:]
            self._growth, self._json_end = None, JsonEnd()
            self._grown_to = len(before) + len(growth.stub)
            self._grown += 1
            self.ended += 1
        else:
            self._held = before + rest[used:]

    def _cut_off(self, opening: str) -> Iterator[Part]:
        """Yield the call that the end of the completion cut off, or the held text as answer."""
        if self._growth is None:
            yield from self._grow(-1)
        if not (self._growth or self._grown) and self._held and self._state != "text":
            yield self._say(opening + self._held)
        self._ended("", "text")

    def _parsed(self, body: str) -> Sequence[FunctionCall]:
        """Return the calls in *body*; () if *body* is not a valid call."""
        assert self._calls is not None
        try:
            return self._calls.parse(body, self._schemas)
        except ValueError:
            pass
        if fenced := FENCED.fullmatch(body):
            body = fenced[1]
        try:
            return [
                call for value in objects(body, ",;") for call in calls_of(value, self._schemas)
            ]
        except ValueError:
            return ()
