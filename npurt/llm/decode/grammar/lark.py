"""Build parts of grammars in llguidance's dialect of Lark."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from npurt.llm.decode.grammar import schemas
from npurt.llm.decode.grammar.library import llguidance

Functions = Mapping[str, Mapping[str, Any]]  # function name: schema of arguments
ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
# Keywords that describe the properties of an object.
PROPERTIES = (
    "properties", "additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf"
)  # fmt: skip


def parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments, which are an object.

    A function without *schema*, or with one that describes no property, has no parameters.
    """
    none: dict[str, Any] = {} if any(key in schema for key in PROPERTIES) else {"properties": {}}
    return {"type": "object", **none, **schema}


def quoted(text: str) -> str:
    """Return the Lark string literal that matches *text*."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def lark_of_regex(text: str) -> str:
    """Return the grammar of texts that match the regular expression *text*."""
    return f"start: /{llguidance().regex_to_lark(text, '')}/\n"


def value(schema: Any) -> str:
    """Return the Lark expression that matches JSON values of *schema*.

    Raises:
        GrammarError: The schema is invalid or too large.
    """
    return f"%json {schemas.lark_of(schemas.json_of(schema))}"


def either(rule: str, options: Sequence[str]) -> str:
    """Return Lark in which *rule* matches one of *options*, each in a rule with a number."""
    names = [f"{rule}_{i}" for i in range(len(options))]
    lines = [f"{name}: {option}\n" for name, option in zip(names, options, strict=True)]
    return f"{rule}: {' | '.join(names)}\n" + "".join(lines)


def one_call(functions: Functions) -> dict[str, Any]:
    """Return the response format of a JSON object with *name* and *arguments* of one call."""
    definitions: dict[str, Any] = {}
    calls = []
    for name, given in functions.items():
        schema = parameters(given)
        for key in ("$defs", "definitions"):  # the paths of references begin at the root
            definitions.setdefault(key, {}).update(schema.pop(key, None) or {})
        calls.append({
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": schema},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        })  # fmt: skip
    named = {key: value for key, value in definitions.items() if value}
    return {"type": "json_schema", "json_schema": {"schema": {"anyOf": calls} | named}}
