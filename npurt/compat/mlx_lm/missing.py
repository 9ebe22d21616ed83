"""What of mlx-lm npurt does not have."""

from collections.abc import Mapping
from typing import Any

from npurt.errors import UnsupportedOp, brief


def missing(name: str, remedy: str = "") -> UnsupportedOp:
    """Return the error about something that npurt does not have."""
    return UnsupportedOp(
        f"npurt.compat.mlx_lm does not have {name} yet", remedy=remedy or f"do without {name}"
    )


def refuse(given: Mapping[str, Any], *names: str) -> None:
    """Refuse those of *given* that are of *names*, unless they are None, False or empty.

    Raises:
        UnsupportedOp: One is something else.
    """
    for name in names:
        value = given[name]
        empty = isinstance(value, Mapping) and not value
        if not (value is None or value is False or empty):
            raise missing(f"{name}={brief(given[name])}")
