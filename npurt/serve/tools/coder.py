r"""Calls in tags for each parameter: Qwen3-Coder, Qwen3.5.

Source: the chat templates of these models: ``<tool_call>\n<function=NAME>\n<parameter=NAME>\n
VALUE\n</parameter>\n</function>\n</tool_call>``.  A value is text; its type is in the schema.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from npurt.serve.tools.calls import Call, Schemas

FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)</function>", re.S)
PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.S)


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
    return Call(name, json.dumps(arguments, ensure_ascii=False))


def _value(text: str, schema: Any) -> Any:
    """Return *text* as what *schema* says; text where it says nothing, or the text is no JSON."""
    kinds = schema.get("type") if isinstance(schema, Mapping) else "string"
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return None if text == "null" and isinstance(kinds, list) and "null" in kinds else text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        literal = {"True": True, "False": False, "None": None}  # models write Python as well
        return literal.get(text.strip(), text)
