"""Check the arguments of public functions, by name."""

import operator
import os
import re
from numbers import Integral
from typing import Any

from npurt.errors import SettingError, brief

# Characters that no file name can have.  Surrogates that encode bytes outside UTF-8 are allowed.
_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def integer(name: str, value: Any, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return *value* of the argument *name*, an integer of Python or numpy, as an int.

    Raises:
        SettingError: *value* is not an integer, below *minimum* or above *maximum*.
    """
    bounds = [f"of at least {minimum}"] if minimum is not None else []
    bounds += [f"at most {maximum}"] if maximum is not None else []
    remedy = " ".join([f"{name} must be an integer", " and ".join(bounds)]).strip()
    try:
        number = operator.index(value)
    except TypeError as error:
        raise SettingError(f"{name} is {brief(value)}", remedy=remedy) from error
    low, high = minimum is not None and number < minimum, maximum is not None and number > maximum
    if low or high or _is_bool(value):
        raise SettingError(f"{name} is {brief(value)}", remedy=remedy)
    return number


def flag(name: str, value: Any) -> bool:
    """Return *value* of the argument *name*, a bool of Python or numpy, 1, 0 or None, as a bool.

    Raises:
        SettingError: *value* is of another type, or another integer.
    """
    if value is None or _is_bool(value) or (isinstance(value, Integral) and value in (0, 1)):
        return bool(value)
    raise SettingError(f"{name} is {brief(value)}", remedy=f"{name} must be True or False")


def _is_bool(value: Any) -> bool:
    """Return whether *value* is a bool of Python or numpy, without importing numpy."""
    if isinstance(value, bool):
        return True
    return getattr(value, "shape", None) == () and str(getattr(value, "dtype", "")) == "bool"


def listed(name: str, value: Any, of: str) -> list[Any]:
    """Return the members of *value*, an iterable argument called *name*, as a list.

    Args:
        of: The required type, for the remedy: "a list of texts".

    Raises:
        SettingError: *value* is not iterable.
    """
    try:
        return list(value)
    except TypeError as error:
        raise SettingError(f"{name} is {brief(value)}", remedy=f"{name} must be {of}") from error


def require_path(value: Any) -> str:
    """Return the path *value*, a str or a path object, as a str.

    Raises:
        SettingError: *value* is not a path, or no file can have this name.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text or _SURROGATE.search(text):
        raise SettingError(f"{brief(value)} is no path", remedy="pass a str or a pathlib.Path")
    return text


def optional_integer(name: str, value: Any, minimum: int | None = None) -> int | None:
    """Return *value* as `integer` does, or None if it is None."""
    return None if value is None else integer(name, value, minimum)


def none_at_minus_one(name: str, value: Any) -> int | None:
    """Return *value*, None or an integer of at least -1; -1 becomes None, as in other libraries.

    Raises:
        SettingError: *value* is neither None nor an integer of at least -1.
    """
    number = optional_integer(name, value, -1)
    return None if number == -1 else number
