"""What a caller gives to samplers, checked: numbers, biases and functions."""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

from npurt.errors import SettingError, brief
from npurt.llm.text.vocabulary import MAX_TOKENS
from npurt.runtime.open.arguments import integer, listed

LONGEST_ID = 20  # digits of a token id
LARGEST = float.fromhex("0x1.fffffep+127")  # finite logit, in float32


def functions(name: str, given: Any) -> tuple[Callable[..., Any], ...]:
    """Return the functions of the argument *name*: none, one, or several of an iterable.

    Raises:
        SettingError: One cannot be called.
    """
    if given is None:
        return ()
    several = isinstance(given, Iterable)
    members = tuple(listed(name, given, "a function, or a list of them")) if several else (given,)
    for member in members:
        if not callable(member):
            raise SettingError(
                f"{name} is {brief(given)}", remedy=f"{name} must be a function, or a list of them"
            )
    return (given,) if callable(given) else members


def finite(name: str, value: Any) -> float:
    """Return the number *value* of the argument *name*.

    Raises:
        SettingError: It is no number, or float32 does not hold it.
    """
    number = as_float(value) if isinstance(value, Real) else math.nan
    if not -LARGEST <= number <= LARGEST:
        raise SettingError(
            f"{name} is {brief(value)}", remedy=f"{name} must be a number that float32 holds"
        )
    return number


def as_float(value: Any) -> float:
    """Return a number as a float; infinity where a float does not hold it.

    A number of numpy is converted before it is compared: otherwise numpy would convert the limit to
    the type of the number.
    """
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def checked_biases(biases: Any) -> dict[int, float]:
    """Return the argument logit_bias by id; None: no biases.  An id may be text, as in JSON.

    Raises:
        SettingError: It is no mapping, an id is none, or a bias is neither -inf nor finite.
    """
    if biases is None:
        return {}
    if not isinstance(biases, Mapping):
        raise SettingError(
            f"logit_bias is {brief(biases)}", remedy="pass a dict of token ids and numbers"
        )
    checked: dict[int, float] = {}
    for token, bias in biases.items():
        digits = isinstance(token, str) and token.isdecimal() and len(token) <= LONGEST_ID
        number = integer(
            "a token id of logit_bias", int(token) if digits else token, 0, MAX_TOKENS - 1
        )
        if isinstance(bias, Real) and as_float(bias) < -LARGEST:
            checked[number] = -math.inf
        else:
            checked[number] = finite(f"logit_bias of token {number}", bias)
    return checked
