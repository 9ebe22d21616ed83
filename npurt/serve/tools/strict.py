"""Grammars of texts in which each call that the model begins is of its schema.

The text is free up to what a call begins with.  From there on it is what the rules of the format
say, up to the end of the call.  The form is Lark, as llguidance reads it: a rule that is ``[lazy]``
ends as soon as it can, and so before other rules that match more.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from npurt.llm.decode.grammar.lark import Functions as Functions
from npurt.llm.decode.grammar.lark import either as either
from npurt.llm.decode.grammar.lark import quoted as quoted
from npurt.llm.decode.grammar.lark import value as value

TERMINALS = r"""
TEXT: /(.|\n)*/
SPACE: /[ \n\t]{0,20}/
LINE: /\n?/
"""


class Markers:
    """How markers stand in Lark: as tokens where the model has them as markup, else as text.

    Args:
        token: Returns the id of a token of markup, or None.
    """

    def __init__(self, token: Callable[[str], int | None]) -> None:
        self._token = token

    def one(self, marker: str) -> str:
        """Return a rule for *marker*."""
        token = self._token(marker)
        return quoted(marker) if token is None else f"<[{token}]>"

    def up_to(self, rule: str, marker: str, before: str = "TEXT") -> str:
        """Return a *rule* for the text *before* the first *marker*, and the marker."""
        lazy = "[lazy]" if self._token(marker) is None else ""
        return f"{rule}{lazy}: {before} {self.one(marker)}\n"


def spaced(words: Iterable[str]) -> str:
    """Return a rule for *words* with space between them."""
    return " SPACE ".join(quoted(word) for word in words)


def arguments(functions: Functions) -> str:
    """Return a rule for the arguments of each function, as an object; errors as `value`."""
    return either("arguments", [value({"type": "object", **each}) for each in functions.values()])


def head(name: str, key: str) -> list[str]:
    """Return the words before the arguments in an object that calls *name*."""
    return ["{", '"name"', ":", json.dumps(name, ensure_ascii=False), ",", json.dumps(key), ":"]


def objects(functions: Functions, key: str) -> str:
    """Return the rule ``object`` of calls with arguments as *key*; errors as `value`."""
    options = [
        f'{spaced(head(name, key))} SPACE arguments_{i} SPACE "}}"'
        for i, name in enumerate(functions)
    ]
    return either("object", options) + arguments(functions)


def properties(schema: Mapping[str, Any]) -> list[tuple[str, Any, bool]] | None:
    """Return each property of an object: name, schema, whether it must be; None: there may be any.

    Their schemas get the definitions of *schema*.
    """
    found, required = schema.get("properties"), schema.get("required")
    if not isinstance(found, Mapping):
        return [] if schema.get("additionalProperties") is False else None
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return [
        (
            name,
            {**shared, **each} if isinstance(each, Mapping) else each,
            isinstance(required, Sequence) and name in required,
        )
        for name, each in found.items()
    ]


def grammar(rules: str, markers: Markers, thought: tuple[str, str] | None, *, within: bool) -> str:
    """Return the grammar of a text.

    Args:
        rules: Those of a format: ``answer`` and what it needs.
        thought: What is around a thought, with which the text may begin; None: there is none.
        within: Whether the text begins in a thought.
    """
    if thought is None:
        return f"start: answer\n{rules}{TERMINALS}"
    begin, end = thought
    rest = "thought answer | TEXT"  # a thought need not end
    start = f"start: {rest}\n"
    if not within:
        start = f"start: answer | opening ({rest})\n" + markers.up_to("opening", begin, "SPACE")
    return f"{start}{markers.up_to('thought', end)}{rules}{TERMINALS}"
