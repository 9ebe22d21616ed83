"""What a text must be: a JSON schema, a regular expression, or a grammar."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from npurt.errors import GrammarError, SettingError, brief
from npurt.llm.decode.grammar.library import check, limits, llguidance, no_panic
from npurt.llm.decode.grammar.vocabulary import vocabulary_of_bytes

MAX_TEXT = 1 << 18  # characters of a grammar; the slowest known of that length takes a second
# llguidance calls itself for each rule that names the next one, and for each reference of a schema:
# a chain of 3,000 exceeds the stack of a thread, and ends the process.
MAX_RULES = 1500
RULE = re.compile(r"^[ \t]*[?!]*\w[^:\"/\n]*:", re.M)
# Added to each grammar: where only one text may follow, any tokens of it may.  Otherwise llguidance
# writes all of that text at once; for a grammar of a kilobyte, it may have gigabytes.
NO_FORCING = '\n%llguidance {"no_forcing": true}\n'


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
            GrammarError: It is wrong, or too large, or matches no text.
            UnsupportedOp: The package llguidance is not installed.
        """
        from npurt.llm.decode.grammar import gbnf

        _check_text("a GBNF grammar", text)
        return cls._checked("GBNF", text, gbnf.lark_of(text, MAX_RULES))

    @classmethod
    def from_lark(cls, text: str) -> Self:
        """Return the grammar in Lark's form, with llguidance's extensions; errors as `from_gbnf`.

        Its first rule is ``start``.
        """
        from npurt.llm.decode.grammar import schemas

        _check_text("a Lark grammar", text)
        count = max(len(RULE.findall(text)), schemas.references_in_lark(text))
        return cls._checked("Lark", text, text, count)

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
        from npurt.llm.decode.grammar import schemas

        given = schemas.json_of(schema)
        _check_text("a JSON schema", given)
        read = schemas.lark_of(given)
        return cls._checked("JSON schema", given, f"start: %json {read}", schemas.references(read))

    @classmethod
    def json_object(cls) -> Self:
        """Return the grammar of all JSON objects; errors as `from_gbnf`."""
        return cls.from_json_schema({"type": "object"})

    @classmethod
    def _checked(cls, kind: str, text: str, lark: str, rules: int = 0) -> Self:
        if rules > MAX_RULES:
            raise GrammarError(
                f"the {kind} has {rules} rules or references, above {MAX_RULES}",
                remedy="use a simpler one",
            )
        lark += NO_FORCING
        with no_panic(kind):
            _check_lark(kind, lark)
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


def _check_lark(kind: str, lark: str) -> None:
    """Refuse a grammar that llguidance cannot read, or that lets no text begin."""
    matcher = llguidance().LLMatcher(vocabulary_of_bytes(), lark, log_level=0, limits=limits())
    if matcher.is_error():  # or it names tokens, which only a model has
        failed, messages = matcher.validate_grammar_with_warnings(lark, None, limits=limits())
        if failed:
            raise _wrong(kind, " ".join(messages))
        return
    matcher.compute_bitmask()
    check(matcher, kind, 0)


def _wrong(kind: str, what: str) -> GrammarError:
    return GrammarError(f"the {kind} is wrong: {what:.300}", remedy=f"correct the {kind}")
