"""Grammars for completions in which every function call matches its schema.

The text before a call's start marker is unconstrained.  From the start marker to the end of the
call, the format's rules constrain the text.  The grammars are in Lark, with llguidance's extension
``[lazy]``: a lazy rule ends at its first match, even if another rule matches more text.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from npurt.llm.decode.grammar.lark import Functions as Functions
from npurt.llm.decode.grammar.lark import either as either
from npurt.llm.decode.grammar.lark import parameters
from npurt.llm.decode.grammar.lark import quoted as quoted
from npurt.llm.decode.grammar.lark import value as value

TERMINALS = r"""
TEXT: /(.|\n)*/
SPACE: /[ \n\t]{0,20}/
LINE: /\n?/
"""


class Markers:
    """Writes a format's markers as Lark rules: control tokens by id, other markers as text.

    Args:
        token: Returns the id of the control token with a given text; None if there is none.
    """

    def __init__(self, token: Callable[[str], int | None]) -> None:
        self._token = token

    def one(self, marker: str) -> str:
        """Return a rule for *marker*."""
        token = self._token(marker)
        return quoted(marker) if token is None else f"<[{token}]>"

    def up_to(self, rule: str, marker: str, before: str = "TEXT") -> str:
        """Return a Lark rule for text up to and including the first *marker*.

        Args:
            rule: The rule's name.
            marker: The marker that ends the rule.
            before: The name of the rule for the text before *marker*.
        """
        lazy = "[lazy]" if self._token(marker) is None else ""
        return f"{rule}{lazy}: {before} {self.one(marker)}\n"


def spaced(words: Iterable[str]) -> str:
    """Return a Lark rule for *words* with optional space between them."""
    return " SPACE ".join(quoted(word) for word in words)


def arguments(functions: Functions) -> str:
    """Return the rules ``arguments_i`` for each function's arguments as an object.

    Errors as for `value`.
    """
    return either("arguments", [value(parameters(each)) for each in functions.values()])


def head(name: str, key: str) -> list[str]:
    """Return the JSON tokens of a call of *name* up to the arguments, whose key is *key*."""
    return ["{", '"name"', ":", json.dumps(name, ensure_ascii=False), ",", json.dumps(key), ":"]


def objects(functions: Functions, key: str) -> str:
    """Return the rule ``object`` for a call in JSON whose arguments have *key*.

    Errors as for `value`.
    """
    options = [
        f'{spaced(head(name, key))} SPACE arguments_{i} SPACE "}}"'
        for i, name in enumerate(functions)
    ]
    return either("object", options) + arguments(functions)


def properties(schema: Mapping[str, Any]) -> list[tuple[str, Any, bool]] | None:
    """Return (name, schema, whether required) of each property; None if any property is allowed.

    The definitions in *schema* (``$defs``) are copied into each property's schema.
    """
    schema = parameters(schema)
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
    """Return the grammar of a completion.

    Args:
        rules: The format's rules: ``answer`` and the rules that it uses.
        markers: The writer of markers.
        thought: The tags around a thought before the answer; None: no thoughts.
        within: Whether the completion begins inside a thought.
    """
    if thought is None:
        return f"start: answer\n{rules}{TERMINALS}"
    begin, end = thought
    rest = "thought answer | TEXT"  # TEXT: a thought that does not end
    start = f"start: {rest}\n"
    if not within:
        start = f"start: answer | opening ({rest})\n" + markers.up_to("opening", begin, "SPACE")
    return f"{start}{markers.up_to('thought', end)}{rules}{TERMINALS}"
