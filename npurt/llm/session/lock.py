"""Whose turn it is to use a model: one thread at a time, and another is told so.

A run leaves the interpreter's lock while kernels work, so another thread could begin one in the
same buffers and in the same cache.
"""

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from npurt.errors import SettingError


class Turn:
    """What a thread holds, with ``with``, while it uses a model; it may do so again meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        """Begin.

        Raises:
            SettingError: It is another thread's turn.
        """
        if not self._lock.acquire(blocking=False):
            raise SettingError(
                "this model is in use by another thread",
                remedy="open one Llama for each thread, or hold a lock of your own around calls",
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class HasTurn(Protocol):
    """What `in_turn` decorates methods of."""

    turn: Turn


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=HasTurn)


def in_turn(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Return *method* so that it holds its object's turn; SettingError when another thread does."""

    @functools.wraps(method)
    def held(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.turn:
            return method(self, *args, **kwargs)

    return held
