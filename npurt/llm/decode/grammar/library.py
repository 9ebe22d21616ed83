"""The package llguidance, which is optional: parsers that say which tokens may come next."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from npurt.errors import GrammarError, UnsupportedOp
from npurt.once import once


def llguidance() -> Any:
    """Return the package.

    Raises:
        UnsupportedOp: It is not installed.
    """
    try:
        return importlib.import_module("llguidance")
    except ImportError as error:
        raise UnsupportedOp(
            "structured output needs the package llguidance, which is not installed",
            remedy="install it: pip install 'npurt[structured]'",
        ) from error


@once
def limits() -> Any:
    """Return the limits of a parser.

    They count operations.  They are the package's, but for the number of symbols, which is a tenth
    of its default: with the default, the longest step known took four seconds.  Without
    *verbose_errors* a message has no text of the grammar.
    """
    return llguidance().LLParserLimits(verbose_errors=False, max_grammar_size=50_000)


@contextlib.contextmanager
def no_panic(kind: str) -> Iterator[None]:
    """Turn llguidance's panic over a grammar of *kind* into a GrammarError.

    Rust also prints the panic to standard error, and what it raises is no `Exception`.

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
    """Return the error that no token may follow the first *count* of a text."""
    if not count:
        return GrammarError(
            f"the {kind} matches no text", remedy=f"correct the {kind}, so that a text can begin"
        )
    return GrammarError(
        f"after {count} tokens the {kind} lets none follow",
        remedy="correct it: each beginning of a text must have an end",
    )


def check(matcher: Any, kind: str, count: int) -> None:
    """Refuse a parser of llguidance that failed after *count* tokens.

    Raises:
        GrammarError: It did.
    """
    if not matcher.is_error():
        return
    said = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
    if said.startswith("NoExtension"):
        raise dead_end(kind, count)
    if "Current row has" in said:
        raise GrammarError(
            f"after {count} tokens the {kind} could go on in too many ways",
            remedy="use fewer alternatives, and fewer properties that are not required",
        )
    raise GrammarError(
        f"the {kind} failed after {count} tokens: {said:.300}",
        remedy="use a simpler one, with shorter repetitions",
    )
