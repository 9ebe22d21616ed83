"""Check grammars for completions: JSON schemas, regular expressions, GBNF and Lark."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from npurt.base import late
from npurt.errors import GrammarError, SettingError, brief
from npurt.llm.decode.grammar.library import check, limits, llguidance, no_panic
from npurt.llm.decode.grammar.vocabulary import vocabulary_of_bytes
from npurt.llm.text.tokenizer import Tokenizer

MAX_TEXT = 1 << 18  # characters of a grammar; the slowest known grammar of that length takes 1 s
# llguidance recurses for each rule that names another rule, and for each reference in a schema: a
# chain of 3,000 rules overflows the stack of a thread and ends the process.
MAX_RULES = 1500
SYNTAX = {  # kind -> the remedy for a grammar that is wrong
    "GBNF": "change this place; llama.cpp's grammars/README.md has the syntax",
    "JSON schema": "change or leave out this part of the schema",
    "Lark": "change this place; llguidance's docs/syntax.md has the syntax",
    "regex": "change this place; the syntax is that of Rust's crate regex, without look-around",
}
TOKEN = re.compile(r"(?<=<\[|\[\^)@(\d+)(?=\]>)")
RULE = re.compile(r"^[ \t]*[?!]*\w[^:\"/\n]*:", re.M)
QUOTE = re.compile(r"^ *\d+ \|", re.M)  # a line of the grammar in a message of llguidance
# Added to each grammar.  Without it, llguidance generates text as soon as the grammar allows only
# one continuation; a grammar of 1 KB may force gigabytes of text.
NO_FORCING = '\n%llguidance {"no_forcing": true}\n'


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that a completion must match.  Create it with a class method, which checks it.

    Attributes:
        kind: ``"GBNF"``, ``"JSON schema"``, ``"Lark"`` or ``"regex"``.
        text: The grammar as the caller wrote it.
    """

    kind: str
    text: str
    lark: str = field(repr=False)  # the grammar in Lark, for llguidance
    tokens: tuple[int | str, ...] = ()  # see `gbnf.lark_of`

    def lark_for(self, tokenizer: Tokenizer) -> str:
        """Return the grammar in Lark, with the ids of the tokens that it names.

        Raises:
            GrammarError: The tokenizer has no such token.
        """
        ids = [_id_of(token, tokenizer) for token in self.tokens]
        return TOKEN.sub(lambda match: str(ids[int(match[1])]), self.lark) if ids else self.lark

    @classmethod
    def from_gbnf(cls, text: str) -> Self:
        """Return a grammar from GBNF, llama.cpp's format.  The first rule is ``root``.

        Raises:
            GrammarError: The grammar is wrong, or too large, or matches no text.
            UnsupportedOp: The package llguidance is not installed.
        """
        with late.imports():
            from npurt.llm.decode.grammar import gbnf

        _check_text("a GBNF grammar", text)
        lark, tokens = gbnf.lark_of(text, MAX_RULES)
        return cls._checked("GBNF", text, lark, tokens=tokens)

    @classmethod
    def from_lark(cls, text: str) -> Self:
        """Return a grammar from Lark with llguidance's extensions.  The first rule is ``start``.

        Raises the errors of `from_gbnf`.
        """
        with late.imports():
            from npurt.llm.decode.grammar import schemas

        _check_text("a Lark grammar", text)
        count = max(len(RULE.findall(text)), schemas.references_in_lark(text))
        return cls._checked("Lark", text, text, count)

    @classmethod
    def from_regex(cls, text: str) -> Self:
        """Return a grammar from a regular expression, which must match the whole completion.

        The syntax is that of Rust's crate regex, without look-around and backreferences.  Raises
        the errors of `from_gbnf`.
        """
        _check_text("a regular expression", text)
        with late.imports():
            from npurt.llm.decode.grammar.lark import lark_of_regex

        return cls._checked("regex", text, lark_of_regex(text))

    @classmethod
    def from_json_schema(cls, schema: str | bool | Mapping[str, Any]) -> Self:
        """Return a grammar from a JSON schema, given as JSON text or as a parsed value.

        The properties of an object must be in the order of the schema.  A keyword that llguidance
        does not support raises an error.  Raises the errors of `from_gbnf`.
        """
        with late.imports():
            from npurt.llm.decode.grammar import schemas

        given = schemas.json_of(schema)
        _check_text("a JSON schema", given)
        try:
            return cls._of_schema(given)
        except GrammarError as error:
            raise schemas.at_its_place(error, given, cls._of_schema) from None

    @classmethod
    def _of_schema(cls, text: str) -> Self:
        with late.imports():
            from npurt.llm.decode.grammar import schemas

        read = schemas.lark_of(text)
        return cls._checked("JSON schema", text, f"start: %json {read}", schemas.references(read))

    @classmethod
    def json_object(cls) -> Self:
        """Return the grammar of all JSON objects.  Raises the errors of `from_gbnf`."""
        return cls.from_json_schema({"type": "object"})

    @classmethod
    def _checked(
        cls, kind: str, text: str, lark: str, rules: int = 0, tokens: Sequence[int | str] = ()
    ) -> Self:
        if rules > MAX_RULES:
            raise GrammarError(
                f"the {kind} has {rules} rules or references, above {MAX_RULES}",
                remedy=f"use a simpler {kind}",
            )
        lark += NO_FORCING
        with no_panic(kind):
            _check_lark(kind, TOKEN.sub("0", lark) if tokens else lark)
        return cls(kind, text, lark, tuple(tokens))


def _id_of(token: int | str, tokenizer: Tokenizer) -> int:
    if isinstance(token, int):
        if token < tokenizer.n_vocab:
            return token
        raise GrammarError(
            f"the GBNF names token <[{token}]>, but the model has {tokenizer.n_vocab} tokens",
            remedy=f"use an id below {tokenizer.n_vocab}; Llama.tokenizer.encode returns ids",
        )
    ids = tokenizer.encode(token, add_bos=False)
    if len(ids) != 1:
        raise GrammarError(
            f"the GBNF names {token}, which is no single token of this model",
            remedy=f'write "{token}" in quotes to match it as text, or use a token of the model',
        )
    return ids[0]


def grammar_of(grammar: Any, response_format: Any) -> Grammar | None:
    """Return the grammar of the options *grammar* and *response_format*; None allows any text.

    Args:
        grammar: A `Grammar`, or GBNF.
        response_format: ``{"type": "text"}``, ``{"type": "json_object"}``, which may have a
            ``"schema"``, as in llama-cpp-python, or ``{"type": "json_schema", "json_schema":
            {"schema": ...}}``, as in OpenAI's API.

    Raises:
        GrammarError: The grammar is wrong, or too large.
        SettingError: The value of an option is invalid, or both options set a grammar.
        UnsupportedOp: The package llguidance is not installed.
    """
    wanted = _of_format(response_format)
    if grammar is None:
        return wanted
    if wanted is not None:
        raise SettingError(
            "both grammar and response_format are given", remedy="leave one of them out"
        )
    if isinstance(grammar, Grammar):
        return grammar
    if isinstance(grammar, str):
        return Grammar.from_gbnf(grammar)
    raise SettingError(
        f"grammar is {brief(grammar)}", remedy="pass an npurt.Grammar, or a grammar in GBNF"
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
            f"{what} has {len(text)} characters, above {MAX_TEXT}", remedy="shorten the grammar"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(
            f"character {error.start} of {what} is a lone surrogate",
            remedy="clean it with text.encode('utf-8', 'replace').decode()",
        ) from error


def _check_lark(kind: str, lark: str) -> None:
    """Raise GrammarError if llguidance cannot read the grammar, or if it allows no first token."""
    matcher = llguidance().LLMatcher(vocabulary_of_bytes(), lark, log_level=0, limits=limits())
    if matcher.is_error():  # also if a correct grammar names tokens of a model's vocabulary
        failed, messages = matcher.validate_grammar_with_warnings(lark, None, limits=limits())
        if failed:
            raise _wrong(kind, " ".join(messages))
        return
    matcher.compute_bitmask()
    check(matcher, kind, 0)


def _wrong(kind: str, what: str) -> GrammarError:
    # llguidance quotes the lines of the grammar after the reason.
    reason = " ".join(QUOTE.split(what)[0].removeprefix("ERROR: ").split())
    if kind == "JSON schema":
        reason = reason.partition("failed to compile JSON schema: ")[2] or reason
        reason = reason.partition(": (And ")[0]  # before llguidance's regular expressions
        with late.imports():
            from npurt.llm.decode.grammar import schemas

        if (found := schemas.lacking(reason)) is not None:
            return found
    return GrammarError(f"the {kind} is wrong: {reason:.300}", remedy=SYNTAX[kind])
