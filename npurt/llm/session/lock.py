"""A non-blocking lock: concurrent use of a model raises SettingError.

A run releases Python's own lock while kernels compute.  Without this lock, another thread could
begin a run in the same buffers and in the same cache.
"""

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from npurt.errors import SettingError


class Lock:
    """A lock that one thread holds, with ``with``, and may take again while it holds it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        """Take the lock.

        Raises:
            SettingError: Another thread holds it.
        """
        if not self._lock.acquire(blocking=False):
            raise SettingError(
                "this model is in use by another thread",
                remedy="open one Llama for each thread, or hold a lock of your own around calls",
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class HasLock(Protocol):
    """An object whose methods `locked` decorates."""

    lock: Lock


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=HasLock)


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Return *method* so that it holds the lock of its object while it runs."""

    @functools.wraps(method)
    def held(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return held
