"""Import and limit llguidance, an optional package that computes the tokens a grammar allows."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from npurt.base import extras, late
from npurt.base.once import once
from npurt.errors import GrammarError, PackageError, UnsupportedOp


def llguidance() -> Any:
    """Import llguidance and return the module.

    Raises:
        UnsupportedOp: llguidance is not installed.
        PackageError: llguidance cannot be loaded.
    """
    try:
        with late.imports():
            return importlib.import_module("llguidance")
    except PackageError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        raise UnsupportedOp(
            "structured output needs the package llguidance, which is not installed",
            remedy=f"install it: {extras.command('structured')}",
        ) from error


@once
def limits() -> Any:
    """Return the limits of a parser, which count operations.

    They are llguidance's defaults, except for the number of symbols.  The limit of symbols is a
    tenth of the default.  With the default, the longest known step took 4 s.  Without
    *verbose_errors*, messages do not quote the grammar.
    """
    return llguidance().LLParserLimits(verbose_errors=False, max_grammar_size=50_000)


@contextlib.contextmanager
def no_panic(kind: str) -> Iterator[None]:
    """Convert a panic of llguidance about a grammar of *kind* into a GrammarError.

    Rust also prints the panic to standard error.  The exception that it raises is not a subclass of
    `Exception`.

    Raises:
        GrammarError: llguidance panicked.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise GrammarError(
            f"llguidance cannot read the {kind}: {error!s:.200}", remedy=f"change the {kind}"
        ) from error


def dead_end(kind: str, count: int) -> GrammarError:
    """Return the error that the grammar allows no token after the first *count* tokens."""
    if not count:
        return GrammarError(
            f"the {kind} matches no text",
            remedy=f"change the {kind}: its beginning must match a text",
        )
    return GrammarError(
        f"after {count} tokens the {kind} allows no next token",
        remedy=f"change the {kind}: each text that it can begin must have an end",
    )


def check(matcher: Any, kind: str, count: int) -> None:
    """Check that llguidance's parser *matcher* has not failed.

    Raises:
        GrammarError: The parser failed after *count* tokens.
    """
    if not matcher.is_error():
        return
    said = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
    if said.startswith("NoExtension"):
        raise dead_end(kind, count)
    if "Current row has" in said:
        raise GrammarError(
            f"after {count} tokens the {kind} has too many possible continuations",
            remedy="use fewer alternatives, and fewer properties that are not required",
        )
    raise GrammarError(
        f"the {kind} failed after {count} tokens: {said:.300}",
        remedy=f"use a simpler {kind}, with shorter repetitions",
    )
