"""Parts of grammars in Lark, as llguidance reads it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from npurt.llm.decode.grammar import schemas

Functions = Mapping[str, Mapping[str, Any]]  # schemas of arguments by name; {}: any arguments


def quoted(text: str) -> str:
    """Return what matches *text*."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def value(schema: Any) -> str:
    """Return the Lark expression that matches JSON of *schema*.

    Raises:
        GrammarError: The schema makes no sense, or is too large.
    """
    return f"%json {schemas.lark_of(schemas.json_of(schema))}"


def either(rule: str, options: Sequence[str]) -> str:
    """Return a *rule* that matches one of *options*, each of which is a rule with a number."""
    names = [f"{rule}_{i}" for i in range(len(options))]
    lines = [f"{name}: {option}\n" for name, option in zip(names, options, strict=True)]
    return f"{rule}: {' | '.join(names)}\n" + "".join(lines)


def one_call(functions: Functions) -> dict[str, Any]:
    """Return the response format of a text that is one call, with *name* and *arguments*."""
    definitions: dict[str, Any] = {}
    calls = []
    for name, parameters in functions.items():
        schema = dict(parameters) or {"type": "object"}
        for key in ("$defs", "definitions"):  # references begin at the root
            definitions.setdefault(key, {}).update(schema.pop(key, None) or {})
        calls.append({
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": schema},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        })  # fmt: skip
    named = {key: value for key, value in definitions.items() if value}
    return {"type": "json_schema", "json_schema": {"schema": {"anyOf": calls} | named}}
