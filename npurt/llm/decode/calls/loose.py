"""Forms in which small models write calls besides the format of their chat template.

A call is a JSON object with ``name``, and ``arguments`` or ``parameters``.  It may stand alone, in
a list, in a fence (```` ```json ````), or between tags such as ``<tools>``.  A text is a call only
if the name is that of a listed function, and only at the beginning of a line.
"""

import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from npurt.llm.decode.calls.format import FunctionCall, Schemas, call_of

TAGS = (
    "tools", "tool", "tool_call", "tool_calls", "function", "function_call", "functions", "json",
    "JSON", "xml", "response", "call",
)  # fmt: skip
# Keys with which a call may begin.
KEYS = ("name", "arguments", "parameters", "type", "function", "id", "tool_calls")
FENCE = re.compile(r"```[\w+-]*[ \t]*")
FENCED = re.compile(r"\s*```[\w+-]*[ \t]*\n(.*?)(?:```\s*)?", re.DOTALL)
LONGEST_FENCE = 20  # characters
KEY = re.compile(r'"(\w*)"\s*:\s*')
SOME_KEY = re.compile(r'(?:"(\w*)(?:"\s*:?\s*)?)?')
NAME = re.compile(r'"([^"\\]*)"')
TAG = re.compile(r"<(\w+)>")
BLANK = re.compile(r"\s*")


class Look(Enum):
    """Whether a text begins with a call: no, perhaps (more text decides), or probably."""

    NO = 0
    WAIT = 1
    YES = 2


def look(text: str, schemas: Schemas) -> tuple[Look, int]:
    """Return whether *text* begins with a call, and the index where its JSON begins."""
    at = 0
    openings = [_after_fence, _after_tag]
    for opening in openings if text.startswith("`") else reversed(openings):
        kind, at = opening(text, at)
        if kind is not Look.YES:
            return kind, 0
    if at == len(text):
        return (Look.WAIT if at else Look.NO), 0
    return _head(text, at, schemas), at


def _after_fence(text: str, at: int) -> tuple[Look, int]:
    """Return the index after a fence at index *at* of *text*, or *at* if there is none.

    `Look.NO` stands for other code, and `Look.WAIT` for a line that may become a fence.
    """
    if not text.startswith("`", at):
        return Look.YES, at
    line, feed, _ = text[at:].partition("\n")
    if not feed:
        begun = "```".startswith(line) or FENCE.fullmatch(line)
        return (Look.WAIT if begun and len(line) < LONGEST_FENCE else Look.NO), at
    if not FENCE.fullmatch(line):
        return Look.NO, at
    return Look.YES, _after_blanks(text, at + len(line))


def _after_tag(text: str, at: int) -> tuple[Look, int]:
    """Return the index after one of `TAGS` at index *at* of *text*; see `_after_fence`."""
    if not text.startswith("<", at):
        return Look.YES, at
    tag = next((f"<{tag}>" for tag in TAGS if text.startswith(f"<{tag}>", at)), "")
    if not tag:
        rest = text[at:]
        return (Look.WAIT if any(f"<{t}>".startswith(rest) for t in TAGS) else Look.NO), at
    return Look.YES, _after_blanks(text, at + len(tag))


def _after_blanks(text: str, at: int) -> int:
    found = BLANK.match(text, at)
    assert found
    return found.end()


def _head(text: str, at: int, schemas: Schemas) -> Look:
    """Return whether the JSON at index *at* may be a call."""
    while text.startswith("[", at):
        at = _after_blanks(text, at + 1)
    if at == len(text):
        return Look.WAIT
    if text[at] != "{":
        return Look.NO
    at = _after_blanks(text, at + 1)
    key = KEY.match(text, at)
    if key is None:
        some = SOME_KEY.fullmatch(text, at)
        begun = some and any(key.startswith(some[1] or "") for key in KEYS)
        return Look.WAIT if begun else Look.NO
    if key[1] not in KEYS:
        return Look.NO
    if key[1] != "name":
        return Look.YES
    name = NAME.match(text, key.end())
    if name is None:
        rest = text[key.end() :]
        return Look.WAIT if any(f'"{name}"'.startswith(rest) for name in schemas) else Look.NO
    return Look.YES if name[1] in schemas else Look.NO


def calls_of(value: Any, schemas: Schemas) -> list[FunctionCall]:
    """Return the calls in *value*, a call or a list of calls.

    Raises:
        ValueError: *value* has something else, such as the description of a function.
    """
    if isinstance(value, list) and value:
        return [call for each in value for call in calls_of(each, schemas)]
    if isinstance(value, Mapping) and "tool_calls" in value:
        return calls_of(value["tool_calls"], schemas)
    inner = value.get("function") if isinstance(value, Mapping) else None
    if isinstance(inner, Mapping):
        value = inner
    elif isinstance(inner, str) and "name" not in value:
        value = {**value, "name": inner}
    call = call_of(value, "arguments", "parameters")
    if call.name not in schemas or not {"arguments", "parameters"} & value.keys():
        raise ValueError("no call of a listed function")
    parameters = value.get("parameters")
    described = isinstance(parameters, Mapping) and isinstance(
        parameters.get("properties"), Mapping
    )
    if described or "description" in value:
        raise ValueError("the description of a function")
    return [call]


def first(text: str, schemas: Schemas) -> list[FunctionCall]:
    """Return the calls in the JSON value *text*.

    Raises:
        ValueError: *text* is not JSON, or the value is no call.
    """
    try:
        return calls_of(json.loads(text), schemas)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


class JsonEnd:
    """Finds the end of a JSON value in a growing text, reading each character once."""

    def __init__(self) -> None:
        self._at = self._depth = 0
        self._in_text = self._escaped = False

    def find(self, text: str) -> int:
        """Return the index after the value at the beginning of *text*; -1: it goes on."""
        for at in range(self._at, len(text)):
            sign = text[at]
            if self._escaped:
                self._escaped = False
            elif self._in_text:
                self._escaped = sign == "\\"
                self._in_text = sign != '"'
            elif sign == '"':
                self._in_text = True
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if not self._depth:
                    return at + 1
        self._at = len(text)
        return -1
