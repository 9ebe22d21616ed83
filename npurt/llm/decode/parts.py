"""Delegate methods of an object to one of its attributes."""

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Concatenate, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Whole = TypeVar("Whole")
S = TypeVar("S")


class Part(Generic[Whole, S]):
    """Turns a method of an attribute's class into a method of the object with that attribute.

    Args:
        name: The name of the attribute.
    """

    def __init__(self, name: str) -> None:
        self._get = attrgetter(name)

    def __call__(
        self, method: Callable[Concatenate[S, P], R]
    ) -> Callable[Concatenate[Whole, P], R]:
        """Return a function that calls *method* with the attribute as ``self``."""
        get = self._get

        @functools.wraps(method)
        def call(whole: Whole, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return method(get(whole), *args, **kwargs)

        return call
