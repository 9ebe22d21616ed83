"""Check the arguments of public functions, by name."""

import operator
from typing import Any

import numpy as np

from npurt.errors import SettingError, UnsupportedOp
from npurt.quant.encode import ENCODABLE
from npurt.quant.types import Format, find


def integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return the integer *value*, Python's or numpy's, of the argument *name*.

    Raises:
        SettingError: *value* is not an integer, below *least* or above *most*.
    """
    bounds = [f"of at least {least}"] if least is not None else []
    bounds += [f"at most {most}"] if most is not None else []
    remedy = " ".join([f"{name} must be an integer", " and ".join(bounds)]).strip()
    try:
        number = operator.index(value)
    except TypeError as error:
        raise SettingError(f"{name} is {value!r}", remedy=remedy) from error
    low, high = least is not None and number < least, most is not None and number > most
    if low or high or isinstance(value, bool | np.bool_):
        raise SettingError(f"{name} is {value!r}", remedy=remedy)
    return number


def optional_integer(name: str, value: Any, least: int | None = None) -> int | None:
    """Return *value* as `integer` does, or None if it is None."""
    return None if value is None else integer(name, value, least)


def none_at_minus_one(name: str, value: Any) -> int | None:
    """Return *value*, None or an integer of at least -1; None for -1, as other libraries have it.

    Raises:
        SettingError: It is neither.
    """
    number = optional_integer(name, value, -1)
    return None if number == -1 else number


def encodable(name: Any, *others: str) -> Format:
    """Return the format called *name*, which npurt must be able to quantise to.

    Args:
        others: Further names that the caller accepts, for the remedy.

    Raises:
        UnsupportedOp: npurt cannot quantise to it.
    """
    if isinstance(name, Format):
        name = name.name
    if not isinstance(name, str) or name.lower() not in ENCODABLE:
        raise UnsupportedOp(
            f"nothing can be quantised to {name!r}",
            remedy=f"use one of {', '.join((*ENCODABLE, *others))}",
        )
    return find(name)
