"""Placeholders for unsupported classes and functions of llama-cpp-python.

A placeholder can be imported, but any use raises UnsupportedOp.
"""

from typing import Any, NoReturn

from npurt.compat.llama_cpp.arguments import missing
from npurt.errors import UnsupportedOp


class MissingAttribute(UnsupportedOp, AttributeError):
    """An attribute of llama-cpp-python's objects that npurt's objects do not have."""


def no_attribute(name: str) -> property:
    """Return a property that raises `MissingAttribute` on access."""

    def refuse(_: object) -> NoReturn:
        raise MissingAttribute(
            f"Llama.{name} is an object of llama.cpp, which npurt does not have",
            remedy="use the methods of Llama",
        )

    return property(refuse)


def refused_class(name: str, remedy: str) -> type[Any]:
    """Return a class with this *name* whose constructor raises UnsupportedOp."""

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise missing(name, remedy)

    methods = {"__new__": refuse, "from_pretrained": staticmethod(refuse)}
    return type(name, (), {"__doc__": f"Refused: {remedy}.", **methods})


def refused_function(name: str, remedy: str) -> Any:
    """Return a function with this *name* that raises UnsupportedOp."""

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise missing(name, remedy)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Refuse: {remedy}."
    return refuse
