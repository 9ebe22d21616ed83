"""A non-blocking lock: concurrent use of a model raises SettingError.

A run releases Python's global interpreter lock while kernels compute.  Without the lock of this
module, another thread could start a run that uses the same buffers and the same KV cache.
"""

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from npurt.errors import SettingError


class Lock:
    """A reentrant lock, used with ``with``."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        """Acquire the lock.

        Raises:
            SettingError: Another thread holds the lock.
        """
        if not self._lock.acquire(blocking=False):
            raise SettingError(
                "this model is in use by another thread",
                remedy="open one Llama for each thread, or protect the calls with a lock",
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class HasLock(Protocol):
    """An object with a lock, whose methods can be decorated with `locked`."""

    lock: Lock


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=HasLock)


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorate *method*: it holds its object's lock while it runs."""

    @functools.wraps(method)
    def held(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return held
