"""Methods of an object that are those of its parts."""

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Concatenate, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Whole = TypeVar("Whole")
S = TypeVar("S")


class Part(Generic[Whole, S]):
    """A decorator: makes a method of the attribute *name* a method of the object that has it.

    Args:
        name: The attribute of the whole.
    """

    def __init__(self, name: str) -> None:
        self._get = attrgetter(name)

    def __call__(
        self, method: Callable[Concatenate[S, P], R]
    ) -> Callable[Concatenate[Whole, P], R]:
        """Return a method that calls *method* of the part."""
        get = self._get

        @functools.wraps(method)
        def call(whole: Whole, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return method(get(whole), *args, **kwargs)

        return call
