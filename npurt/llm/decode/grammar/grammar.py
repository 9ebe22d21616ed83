"""What a text must be: a JSON schema, a regular expression, or a grammar."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Self

from npurt.errors import GrammarError, SettingError, brief
from npurt.llm.decode.grammar.gbnf import lark_of
from npurt.llm.decode.grammar.library import limits, llguidance, no_panic

MAX_TEXT = 1 << 18  # characters of a grammar; the slowest known of that length takes a second
# The parser of a multiple of N has N states: 10,000 take 0.1 s and some MB, 1,000,000 half a
# minute and 600 MB, which the limits of the package do not prevent.
MAX_MULTIPLE = 10_000
# llguidance calls itself for each rule that names the next one, and for each reference of a schema:
# a chain of 3,000 exceeds the stack of a thread, and ends the process.
MAX_RULES = 1500
RULE = re.compile(r"^[ \t]*[?!]*\w[^:\"/\n]*:", re.M)
# Added to each grammar: where only one text may follow, any tokens of it may.  Otherwise llguidance
# makes all of that text at once, of which a grammar of a kilobyte has gigabytes.
NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
# Space between two symbols of JSON.  A model may repeat it for ever, so it has an end.
# Source: llama.cpp common/json-schema-to-grammar.cpp, SPACE_RULE, MIT: what is allowed.
JSON_SPACE = r"[ ]|\n{1,2}[ \t]{0,20}"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a text must be.  Use one of the class methods; each checks the grammar.

    Attributes:
        kind: ``"GBNF"``, ``"JSON schema"``, ``"Lark"`` or ``"regex"``.
        text: As given.
    """

    kind: str
    text: str
    lark: str = field(repr=False)  # for llguidance

    @classmethod
    def from_gbnf(cls, text: str) -> Self:
        """Return the grammar in llama.cpp's form, whose first rule is ``root``.

        Raises:
            GrammarError: It is wrong, or too large.
            UnsupportedOp: The package llguidance is not installed.
        """
        _check_text("a GBNF grammar", text)
        llguidance()
        return cls._checked("GBNF", text, lark_of(text))

    @classmethod
    def from_lark(cls, text: str) -> Self:
        """Return the grammar in Lark's form, with llguidance's extensions; errors as `from_gbnf`.

        Its first rule is ``start``.
        """
        _check_text("a Lark grammar", text)
        for schema in _schemas_in(text):
            _check_multiples(schema)
        return cls._checked("Lark", text, text)

    @classmethod
    def from_regex(cls, text: str) -> Self:
        """Return the regular expression that the whole text matches; errors as `from_gbnf`.

        The syntax is that of Rust's package regex, which has no look-around and no references.
        """
        _check_text("a regular expression", text)
        expression = llguidance().regex_to_lark(text, "")
        return cls._checked("regex", text, f"start: /{expression}/")

    @classmethod
    def from_json_schema(cls, schema: str | bool | Mapping[str, Any]) -> Self:
        """Return the JSON *schema*, JSON text or what it stands for; errors as `from_gbnf`.

        The properties of an object come in the order of the schema.  Keywords that llguidance does
        not know are refused.
        """
        given = _json_of(schema)
        _check_text("a JSON schema", given)
        parsed = _parsed(given)
        if isinstance(parsed, bool):  # the package wants an object
            parsed = {} if parsed else {"not": {}}
        if not isinstance(parsed, dict):
            raise _wrong("JSON schema", "it is neither an object nor true")
        _check_multiples(parsed)
        own = parsed.get("x-guidance", {})
        if isinstance(own, dict):
            parsed["x-guidance"] = {"whitespace_pattern": JSON_SPACE} | own
        return cls._checked("JSON schema", given, f"start: %json {_json_of(parsed)}")

    @classmethod
    def json_object(cls) -> Self:
        """Return the grammar of all JSON objects; errors as `from_gbnf`."""
        return cls.from_json_schema({"type": "object"})

    @classmethod
    def _checked(cls, kind: str, text: str, lark: str) -> Self:
        count = max(len(RULE.findall(lark)), lark.count('"$ref"'))
        if count > MAX_RULES:
            raise GrammarError(
                f"the {kind} has {count} rules or references, above {MAX_RULES}",
                remedy="use a simpler one",
            )
        lark += NO_FORCING
        with no_panic(kind):
            failed, messages = llguidance().LLMatcher.validate_grammar_with_warnings(
                lark, None, limits=limits()
            )
        if failed:
            raise _wrong(kind, " ".join(messages))
        return cls(kind, text, lark)


def grammar_of(grammar: Any, response_format: Any) -> Grammar | None:
    """Return what the options *grammar* and *response_format* ask for; None: any text.

    Args:
        grammar: A `Grammar`, or the text of one in GBNF.
        response_format: ``{"type": "text"}``, ``{"type": "json_object"}``, which may have a
            ``"schema"``, as in llama-cpp-python, or ``{"type": "json_schema", "json_schema":
            {"schema": ...}}``, as in OpenAI's interface.

    Raises:
        GrammarError: The grammar is wrong, or too large.
        SettingError: An option makes no sense, or both ask for something.
        UnsupportedOp: The package llguidance is not installed.
    """
    wanted = _of_format(response_format)
    if grammar is None:
        return wanted
    if wanted is not None:
        raise SettingError("there are a grammar and a response_format", remedy="leave one out")
    if isinstance(grammar, Grammar):
        return grammar
    if isinstance(grammar, str):
        return Grammar.from_gbnf(grammar)
    raise SettingError(
        f"grammar is {brief(grammar)}", remedy="pass an npurt.Grammar, or the text of one in GBNF"
    )


def _of_format(given: Any) -> Grammar | None:
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, Mapping) else None
    kind = kind if isinstance(kind, str) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = given.get("schema")
        return Grammar.json_object() if schema is None else Grammar.from_json_schema(schema)
    if kind == "json_schema":
        around = given.get("json_schema", given)
        schema = around.get("schema") if isinstance(around, Mapping) else None
        if schema is not None:
            return Grammar.from_json_schema(schema)
    raise SettingError(
        f"response_format is {brief(given, 100)}",
        remedy='pass {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", '
        '"json_schema": {"schema": {...}}}',
    )


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise GrammarError(f"{what} is a str, not {brief(text)}", remedy="pass text")
    if len(text) > MAX_TEXT:
        raise GrammarError(
            f"{what} has {len(text)} characters, above {MAX_TEXT}", remedy="use a shorter one"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(
            f"character {error.start} of {what} is a lone surrogate",
            remedy="clean it with text.encode('utf-8', 'replace').decode()",
        ) from error


def _json_of(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, bool | Mapping):
        raise _wrong("JSON schema", f"it is {brief(schema)}")
    try:
        return json.dumps(schema, default=dict)  # other mappings
    except (RecursionError, TypeError, ValueError) as error:
        raise _wrong("JSON schema", str(error)) from error


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        raise _wrong("JSON schema", str(error)) from error


def _schemas_in(lark: str) -> Iterator[Any]:
    """Yield the JSON schemas that a Lark grammar contains."""
    for found in re.finditer(r"%json\s*", lark):
        try:
            yield json.JSONDecoder().raw_decode(lark, found.end())[0]
        except (RecursionError, ValueError):  # no schema, as in a comment; or llguidance says so
            continue


def _check_multiples(schema: Any) -> None:
    """Refuse a *schema* whose multiples need a parser with too many states.

    A parser of decimals has a state for each multiple of the last decimal; one of several multiples
    those of their least common multiple.
    """
    values = [each for each in map(_decimal, _multiples(schema)) if each is not None]
    decimals = max((-int(each.as_tuple().exponent) for each in values), default=0)
    together = 1
    for value in values:
        many = value.adjusted() + decimals > len(str(MAX_MULTIPLE))
        states = MAX_MULTIPLE + 1 if many else int(value.scaleb(max(decimals, 0)))
        together = math.lcm(together, states or 1)
        if together > MAX_MULTIPLE:
            raise GrammarError(
                f"multipleOf, {value:.6g}, needs a parser with more than {MAX_MULTIPLE} states",
                remedy="leave multipleOf out where it is large or has many decimals, and check the "
                "number afterwards",
            )


def _decimal(value: Any) -> Decimal | None:
    """Return a number above 0, without zeros at its end; None: llguidance says what is wrong."""
    try:
        number = Decimal(str(value)).normalize()
    except (InvalidOperation, ValueError):
        return None
    return number if number.is_finite() and number > 0 else None


def _multiples(schema: Any) -> Iterator[Any]:
    rest = [schema]
    while rest:
        each = rest.pop()
        if isinstance(each, dict):
            if "multipleOf" in each:
                yield each["multipleOf"]
            rest += each.values()
        elif isinstance(each, list):
            rest += each


def _wrong(kind: str, what: str) -> GrammarError:
    return GrammarError(f"the {kind} is wrong: {what:.300}", remedy=f"correct the {kind}")
