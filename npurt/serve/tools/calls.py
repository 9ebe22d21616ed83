"""Tools of a request, and calls of them."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from npurt.serve.tools.strict import Functions, Markers


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function: its name, and its arguments as the text of a JSON object."""

    name: str
    arguments: str


Schemas = Mapping[str, Mapping[str, Any]]  # of the parameters of each function, by name


class Format(Protocol):
    """How a model writes calls.

    Attributes:
        start: What a call begins with.
        end: What it ends with; "": the end of the text.
        bare: What a text without *start* begins with, if all of it may be a call.
        markup: Tokens of markup that belong to it.
    """

    start: str
    end: str
    bare: str
    markup: tuple[str, ...]

    def find_end(self, text: str) -> int:
        """Return where *end* begins in *text*, which follows *start*; -1: it has not come yet.

        Arguments may hold the text of *end* as well.
        """
        return -1

    def rules(self, functions: Functions, markers: Markers) -> str:
        """Return rules of Lark: ``answer``, a text whose calls are of *functions*; see `strict`.

        Raises:
            GrammarError: A schema makes no sense, or is too large.
        """
        return "answer: TEXT\n"

    def parse(self, body: str, schemas: Schemas) -> Sequence[Call]:
        """Return the calls in *body*, the text between start and end.

        Raises:
            ValueError: There are none, or the text is something else as well.
        """


def call_of(value: Any, *names: str) -> Call:
    """Return the call that *value* is: an object with a name, and arguments as one of *names*.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("no name")
    arguments: Any = next((value[name] for name in names if name in value), {})
    if isinstance(arguments, str):  # some models write text in which there is JSON
        arguments = json.loads(arguments or "{}")
    if not isinstance(arguments, dict):
        raise ValueError("arguments that are no object")
    return Call(without_surrogates(value["name"]), written(arguments))


def written(arguments: Mapping[str, Any]) -> str:
    """Return *arguments* as JSON.

    Raises:
        ValueError: There is a number that JSON does not have, such as NaN.
    """
    return without_surrogates(json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def without_surrogates(text: str) -> str:
    """Return *text* with pairs of surrogates as one character, and others replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def objects(text: str, separators: str = "") -> list[Any]:
    """Return the JSON values in *text*, one after another.

    Raises:
        ValueError: There is something else, or nothing.
    """
    decoder, found, at = json.JSONDecoder(), [], 0
    blank = " \t\r\n" + separators
    while True:
        while at < len(text) and text[at] in blank:
            at += 1
        if at == len(text):
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except RecursionError as error:
            raise ValueError("nested too deep") from error
        found.append(value)
    if not found:
        raise ValueError("nothing")
    return found


def parsed_arguments(call: Call) -> dict[str, Any]:
    """Return the arguments of *call* as an object."""
    found: dict[str, Any] = json.loads(call.arguments)
    return found


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def new_call_id() -> str:
    """Return a name for a call: nine letters and digits, which is what Mistral's templates want."""
    return "".join(secrets.choice(LETTERS) for _ in range(9))
