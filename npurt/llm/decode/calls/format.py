"""Function calls, and the protocol of the formats in which models write them."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from npurt.llm.decode.calls.strict import Functions, Markers


@dataclass(slots=True)
class FunctionCall:
    """A function call: the function's name, and the arguments as a JSON object in a string.

    The arguments of a call that the end of the completion cut off are the beginning of JSON.
    """

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a call.

    Attributes:
        number: The call's number in the completion, from 0.  Its first piece begins the call.
        name: The function's name.
        arguments: A piece of the arguments.
    """

    number: int
    name: str
    arguments: str


def add_part(calls: list[FunctionCall], part: CallPart) -> None:
    """Add *part* to *calls*, the list of a completion's calls so far."""
    if part.number == len(calls):
        calls.append(FunctionCall(part.name, part.arguments))
    else:
        calls[part.number].arguments += part.arguments


Progress = Literal["more", "end", "broken"]
Schemas = Mapping[str, Mapping[str, Any]]  # schema of each function's parameters by its name


class CallFormat(Protocol):
    """A format in which a model writes calls.

    Attributes:
        start: The marker that begins a call.
        end: The marker that ends a call; "": the call ends with the completion.
        bare: The first characters of a completion that may be a call as a whole, without *start*;
            "": no such completion.
        markup: Control tokens that the format uses.
    """

    start: str
    end: str
    bare: str
    markup: tuple[str, ...]

    def find_end(self, text: str) -> int:
        """Return the index of the call's *end* in *text*, which follows *start*; -1: none yet.

        Arguments may contain the text of *end* as well.
        """
        return -1

    def growth(self, text: str, at: int) -> "Growth | None":
        """Return the growth of the arguments of the next call; None if *text* has none yet.

        Args:
            text: Text after *start*.
            at: The index in *text* up to which earlier calls were read.
        """
        return None

    def rules(self, functions: Functions, markers: Markers) -> str:
        """Return the Lark rules of an ``answer`` whose calls match *functions*; see `strict`.

        Raises:
            GrammarError: A schema is invalid or too large.
        """
        return "answer: TEXT\n"

    def parse(self, body: str, schemas: Schemas) -> Sequence[FunctionCall]:
        """Return the calls in *body*, the text between start and end.

        Raises:
            ValueError: *body* contains no call, or other text besides calls.
        """


class Growth(Protocol):
    """Reads the arguments of a call while the model writes them.

    Attributes:
        name: The function's name.
        start: The index in the text where the arguments begin.
        stub: The text that replaces the arguments once they are complete.
    """

    name: str
    start: int
    stub: str

    def take(self, text: str, schemas: Schemas) -> tuple[str, int, Progress]:
        """Return a piece of JSON, the number of characters of *text* read, and the progress.

        The progress is ``"broken"`` if the text after these characters cannot be arguments.

        Args:
            text: The text after the arguments read so far.
        """


def call_of(value: Any, *names: str) -> FunctionCall:
    """Return the call in *value*, an object with a name, and arguments under one of *names*.

    Raises:
        ValueError: *value* is not a call.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("no name")
    arguments: Any = next((value[name] for name in names if name in value), {})
    arguments = {} if arguments is None else arguments  # as models write for no arguments
    if isinstance(arguments, str):  # some models write the arguments as JSON in a string
        arguments = json.loads(arguments or "{}")
    if not isinstance(arguments, dict):
        raise ValueError("arguments that are no object")
    return FunctionCall(without_surrogates(value["name"]), written(arguments))


def written(arguments: Mapping[str, Any]) -> str:
    """Return *arguments* as JSON.

    Raises:
        ValueError: The arguments contain a number that JSON lacks, such as NaN.
    """
    return without_surrogates(json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def without_surrogates(text: str) -> str:
    """Return *text* with surrogate pairs joined to one character, and lone ones replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def objects(text: str, separators: str = "") -> list[Any]:
    """Return the list of JSON values in *text*, with blanks or *separators* between them.

    Raises:
        ValueError: *text* contains other text, or no value.
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


def parsed_arguments(call: FunctionCall) -> dict[str, Any] | None:
    """Return the arguments of *call* as an object; None if the call was cut off."""
    try:
        found: dict[str, Any] = json.loads(call.arguments or "{}")
    except ValueError:
        return None
    return found


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def new_call_id() -> str:
    """Return a random id of a call: nine letters and digits, as Mistral's templates require."""
    return "".join(secrets.choice(LETTERS) for _ in range(9))
