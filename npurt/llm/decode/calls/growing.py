"""Read the arguments of a call in JSON while the model writes them."""

import json
import re
from collections.abc import Mapping
from typing import Any

from npurt.llm.decode.calls.format import Progress

# The text of a call in JSON before its arguments.  Before it there may be the end of another call.
HEAD = re.compile(
    r'[\s,;\[\]}]*\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
PLAIN = re.compile(r"[\s,:0-9+\-.eEtrufalsn]+")  # JSON outside strings, without brackets
TEXT = re.compile(r'[^"\\\x00-\x1f]+')
ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
LOW = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
HIGH = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
LONGEST_ESCAPE = 12  # characters: two halves of a surrogate pair


class JsonGrowth:
    """The arguments of a call in JSON; see `Growth`.

    It copies JSON, with control characters in strings escaped, and lone surrogates replaced.

    Args:
        name: The function's name.
        start: The index in the text where the arguments begin.
    """

    stub = "{}"

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.start = start
        self._open: list[str] = []  # closing brackets, innermost last
        self._in_text = False

    def take(self, text: str, schemas: Mapping[str, Any]) -> tuple[str, int, Progress]:
        """Return a piece of JSON, the number of characters read, and the progress."""
        del schemas
        made: list[str] = []
        at = 0
        while at < len(text):
            piece, used = self._in_string(text, at) if self._in_text else self._outside(text, at)
            if not used:  # an escape of which more is to come, or no JSON
                waits = text[at] == "\\" and len(text) - at < LONGEST_ESCAPE
                return "".join(made), at, "more" if waits else "broken"
            made.append(piece)
            at += used
            if not self._open:
                return "".join(made), at, "end"
        return "".join(made), at, "more"

    def _outside(self, text: str, at: int) -> tuple[str, int]:
        sign = text[at]
        if sign in "{[":
            self._open.append("}" if sign == "{" else "]")
        elif sign in "}]":
            if self._open[-1] != sign:
                return "", 0
            self._open.pop()
        elif sign == '"':
            self._in_text = True
        else:
            found = PLAIN.match(text, at)
            return (found[0], len(found[0])) if found else ("", 0)
        return sign, 1

    def _in_string(self, text: str, at: int) -> tuple[str, int]:
        if found := TEXT.match(text, at):
            return found[0], len(found[0])
        sign = text[at]
        if sign == '"':
            self._in_text = False
            return sign, 1
        if sign != "\\":
            return json.dumps(sign)[1:-1], 1
        if HIGH.match(text, at):
            if pair := LOW.match(text, at + LONGEST_ESCAPE // 2):
                return text[at : pair.end()], LONGEST_ESCAPE
            return ("\ufffd", 6) if len(text) - at >= LONGEST_ESCAPE else ("", 0)
        if LOW.match(text, at):
            return "\ufffd", 6
        found = ESCAPE.match(text, at)
        return (found[0], len(found[0])) if found else ("", 0)


def json_growth(text: str, at: int) -> JsonGrowth | None:
    """Return the growth of the first call in JSON at index *at*; None if its head is incomplete."""
    found = HEAD.match(text, at)
    return JsonGrowth(found["name"], found.end()) if found else None
