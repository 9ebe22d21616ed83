"""The package llguidance, which is optional: parsers that say which tokens may come next."""

import importlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

from npurt.errors import UnsupportedOp

T = TypeVar("T")


@cache
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


@cache
def limits() -> Any:
    """Return the limits of a parser.

    Those of the package, which count operations, are kept: a grammar that needs more ends with an
    error after 20 to 100 ms (bench/RESULTS.md).  Without *verbose_errors* a message has no text of
    the grammar.
    """
    return llguidance().LLParserLimits(verbose_errors=False)


def later(make: Callable[[], T]) -> Future[T]:
    """Return the future result of *make*, which a thread computes; the process does not wait."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(make())
        except BaseException as error:  # noqa: BLE001  handed to the thread that waits
            future.set_exception(error)

    threading.Thread(target=work, name="npurt grammar", daemon=True).start()
    return future
