"""Errors for unsupported arguments and names of mlx-lm."""

from collections.abc import Mapping
from typing import Any

from npurt.errors import UnsupportedOp, brief


def missing(name: str, remedy: str = "") -> UnsupportedOp:
    """Return the error for the unsupported argument, value or function *name*."""
    return UnsupportedOp(
        f"npurt.compat.mlx_lm does not have {name} yet", remedy=remedy or f"do without {name}"
    )


def refuse(given: Mapping[str, Any], *names: str) -> None:
    """Raise an error unless the arguments *names* in *given* are None, False or empty.

    Raises:
        UnsupportedOp: An argument has another value.
    """
    for name in names:
        value = given[name]
        empty = isinstance(value, Mapping) and not value
        if not (value is None or value is False or empty):
            raise missing(f"{name}={brief(given[name])}")
