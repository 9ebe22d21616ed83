r"""Calls with a tag for each parameter: Qwen3-Coder, Qwen3.5.

Source: the chat templates of these models: ``<tool_call>\n<function=NAME>\n<parameter=NAME>\n
VALUE\n</parameter>\n</function>\n</tool_call>``.  A value is written as text; its type is in the
schema.  A value may contain the text of a tag, because nothing is escaped.  So an end tag counts
only if another tag of the format follows it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from npurt.llm.decode.calls import strict
from npurt.llm.decode.calls.format import (
    CallFormat,
    FunctionCall,
    Growth,
    Progress,
    Schemas,
    without_surrogates,
    written,
)
from npurt.llm.decode.calls.strict import Functions, Markers

FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
FUNCTION_END = re.compile(r"\s*</function>")
PARAMETER = re.compile(
    r"\s*<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>"
    r"(?=\s*(?:<parameter=|</function>\s*(?:<function=|\Z)))",
    re.S,
)
LAST_TAGS = re.compile(r"(?:<function=[^<>\n]+>|</parameter>)\s*</function>\s*(?=</tool_call>)")
BEGIN = re.compile(r"\s*<parameter=([^<>\n]+)>\n?(?=.)", re.S)
TAGS = ("<parameter=", "</function>")
END_TAG = "\n</parameter>"
VALUE_END = re.compile(r"\n?</parameter>")
DEPTH = 4  # levels of nested schemas that are searched for types


class Coder(CallFormat):
    """The format of Qwen3-Coder; see `CallFormat`."""

    start = "<tool_call>"
    end = "</tool_call>"
    bare = ""
    markup: tuple[str, ...] = ("<tool_call>", "</tool_call>")

    def find_end(self, text: str) -> int:
        """Return the index of the first end marker after the tags that end a call; -1: none yet."""
        if not FUNCTION.match(text):
            return text.find(self.end)
        found = LAST_TAGS.search(text)
        return found.end() if found else -1

    def growth(self, text: str, at: int) -> Growth | None:
        """Return the growth of the next call; see `CallFormat`."""
        found = FUNCTION.match(text, at)
        return CoderGrowth(found[1].strip(), found.end()) if found else None

    def rules(self, functions: Functions, markers: Markers) -> str:
        """Return the Lark rules of an answer; see `CallFormat`."""
        calls = [
            f"{strict.quoted(f'<function={name}>')} SPACE {_parameters(schema)}"
            for name, schema in functions.items()
        ]
        return (
            "answer: call* TEXT\n"
            f'call: begin SPACE function SPACE "</function>" SPACE {markers.one(self.end)}\n'
            f"{markers.up_to('begin', self.start)}{strict.either('function', calls)}"
            'up_to_end[lazy]: TEXT "</parameter>"\n'
        )

    def parse(self, body: str, schemas: Schemas) -> Sequence[FunctionCall]:
        """Return the calls in *body*."""
        calls, at = [], 0
        while match := FUNCTION.match(body, at):
            call, at = _call(match[1].strip(), body, match.end(), schemas)
            calls.append(call)
        if not calls or body[at:].strip():
            raise ValueError("no function, or something after it")
        return calls


class CoderGrowth:
    """The arguments of a call with tags, which become JSON; see `Growth`.

    Args:
        name: The function's name.
        start: The index in the text where the parameters begin.
    """

    stub = ""

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.start = start
        self._count = 0  # parameters so far
        self._text = False  # inside the text of a parameter

    def take(self, text: str, schemas: Schemas) -> tuple[str, int, Progress]:
        """Return a piece of JSON, the number of characters read, and the progress."""
        properties = schemas.get(self.name, {}).get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        made, at = "", 0
        while True:
            if self._text:
                inner, used, closed = _text_of(text[at:])
                made += json.dumps(inner, ensure_ascii=False)[1:-1] + '"' * closed
                at += used
                self._text = not closed
                if not closed:
                    return without_surrogates(made), at, "more"
            if FUNCTION_END.match(text, at):
                return f"{made}{'' if self._count else '{'}}}", at, "end"
            begin = BEGIN.match(text, at)
            if begin is None:
                rest = text[at:].lstrip()
                known = any(tag.startswith(rest[: len(tag)]) for tag in TAGS)
                return made, at, "more" if known else "broken"
            key, schema = begin[1].strip(), properties.get(begin[1].strip())
            kinds = _kinds(schema) if isinstance(schema, Mapping) else {"string"}
            if kinds == {"string"}:
                value, used = '"', begin.end()
                self._text = True
            else:
                inner, used, closed = _text_of(text[begin.end() :])
                if not closed:
                    return made, at, "more"
                value = json.dumps(_value(inner, schema), ensure_ascii=False)
                used += begin.end()
            before = ", " if self._count else "{"
            made += f"{before}{json.dumps(key, ensure_ascii=False)}: {value}"
            self._count, at = self._count + 1, used


def _text_of(text: str) -> tuple[str, int, bool]:
    """Return the final part of a parameter's *text*, its length, and whether the text ends there.

    The length includes the end tag.
    """
    at = 0
    while found := VALUE_END.search(text, at):
        ends = _another_tag(text[found.end() :])
        if ends is not False:
            return text[: found.start()], found.end() if ends else found.start(), bool(ends)
        at = found.start() + 1
    held = max(
        next(i for i in range(len(tag), -1, -1) if text.endswith(tag[:i]))
        for tag in (END_TAG, END_TAG.lstrip())
    )
    return text[: len(text) - held], len(text) - held, False


def _another_tag(text: str) -> bool | None:
    """Return whether *text*, which follows an end tag, begins with a tag; None: more decides."""
    rest, tags = text.lstrip(), TAGS
    if rest.startswith(TAGS[1]):
        rest, tags = rest[len(TAGS[1]) :].lstrip(), ("<function=", "</tool_call>")
    if rest.startswith(tags):
        return True
    return None if any(tag.startswith(rest) for tag in tags) else False


def _call(name: str, body: str, at: int, schemas: Schemas) -> tuple[FunctionCall, int]:
    """Return the call of *name* whose parameters begin at index *at*, and the index of its end."""
    properties = schemas.get(name, {}).get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    arguments: dict[str, Any] = {}
    while match := PARAMETER.match(body, at):
        at = match.end()
        key = match[1].strip()
        arguments[key] = _value(match[2], properties.get(key))
    end = FUNCTION_END.match(body, at)
    if end is None:
        raise ValueError("something that is no parameter")
    return FunctionCall(name, written(arguments)), end.end()


def _parameters(schema: Mapping[str, Any]) -> str:
    """Return a Lark rule for the parameters of a call, in the order of *schema*."""
    found = strict.properties(schema)
    if found is None:
        return '("<parameter=" /[^<>\\n]+/ ">" up_to_end SPACE)*'
    return " ".join(
        f"({strict.quoted(f'<parameter={name}>')} {_written(value)} SPACE){'' if needed else '?'}"
        for name, value, needed in found
    )


def _written(schema: Any) -> str:
    """Return a Lark rule for a value of *schema* as `_value` parses it, with its end tag."""
    kinds = _kinds(schema) if isinstance(schema, Mapping) else {"string"}
    if "string" not in kinds:
        return f'SPACE {strict.value(schema)} SPACE "</parameter>"'
    texts = _listed(schema, "enum") if isinstance(schema, Mapping) else []
    if texts and all(isinstance(text, str) for text in texts):
        return f'LINE ({" | ".join(map(strict.quoted, texts))}) LINE "</parameter>"'
    return "up_to_end"


def _value(text: str, schema: Any) -> Any:
    """Parse *text* by the type in *schema*; return *text* if it is not JSON or has no type."""
    kinds = _kinds(schema) if isinstance(schema, Mapping) else {"string"}
    if "string" in kinds:
        return None if text == "null" and "null" in kinds else text
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        literal = {"True": True, "False": False, "None": None}  # models write Python as well
        return literal.get(text.strip(), text)
    return value


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that *schema* names, in up to `DEPTH` levels of anyOf and oneOf."""
    found, level = set(), [schema]
    for _ in range(DEPTH):
        for each in level:
            kinds = each.get("type")
            found |= {
                kind
                for kind in (kinds if isinstance(kinds, list) else [kinds])
                if isinstance(kind, str)
            }
            if any(isinstance(value, str) for value in _listed(each, "enum")):
                found.add("string")
        level = [
            inner
            for each in level
            for name in ("anyOf", "oneOf")
            for inner in _listed(each, name)
            if isinstance(inner, Mapping)
        ]
    return found


def _listed(schema: Mapping[str, Any], name: str) -> list[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []
