r"""Calls in tags for each parameter: Qwen3-Coder, Qwen3.5.

Source: the chat templates of these models: ``<tool_call>\n<function=NAME>\n<parameter=NAME>\n
VALUE\n</parameter>\n</function>\n</tool_call>``.  A value is text; its type is in the schema.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from npurt.serve.tools.calls import Call, Schemas, written

FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)</function>", re.S)
PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.S)


DEPTH = 4  # of schemas within schemas that are looked at


class Coder:
    """See `Format`."""

    start = "<tool_call>"
    end = "</tool_call>"
    bare = ""
    markup: tuple[str, ...] = ("<tool_call>", "</tool_call>")

    def parse(self, body: str, schemas: Schemas) -> Sequence[Call]:
        """Return the calls in *body*."""
        calls, at = [], 0
        while match := FUNCTION.match(body, at):
            at = match.end()
            calls.append(_call(match[1].strip(), match[2], schemas))
        if not calls or body[at:].strip():
            raise ValueError("no function, or something after it")
        return calls


def _call(name: str, body: str, schemas: Schemas) -> Call:
    properties = schemas.get(name, {}).get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    arguments: dict[str, Any] = {}
    at = 0
    while match := PARAMETER.match(body, at):
        at = match.end()
        key = match[1].strip()
        arguments[key] = _value(match[2], properties.get(key))
    if body[at:].strip():
        raise ValueError("something that is no parameter")
    return Call(name, written(arguments))


def _value(text: str, schema: Any) -> Any:
    """Return *text* as what *schema* says; text where it says nothing, or the text is no JSON."""
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
    """Return the types that *schema* allows, as far as it names them, down to `DEPTH`."""
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
