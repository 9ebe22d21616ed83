"""Check the sampling arguments of a caller: numbers, biases and functions."""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

from npurt.errors import SettingError, brief
from npurt.llm.text.vocabulary import MAX_TOKENS
from npurt.runtime.open.arguments import integer, listed

LONGEST_ID = 20  # digits of a token id
LARGEST = float.fromhex("0x1.fffffep+127")  # the largest finite float32


def functions(name: str, given: Any) -> tuple[Callable[..., Any], ...]:
    """Return the functions in *given*, the argument *name*: None, a function or an iterable.

    Raises:
        SettingError: *given* is none of these, or a member cannot be called.
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
        SettingError: *value* is not a number, or is outside the range of float32.
    """
    number = as_float(value) if isinstance(value, Real) else math.nan
    if not -LARGEST <= number <= LARGEST:
        raise SettingError(
            f"{name} is {brief(value)}", remedy=f"{name} must be a number in the range of float32"
        )
    return number


def as_float(value: Any) -> float:
    """Return the number *value* as a float; a number outside the range of float becomes infinite.

    Callers compare the result instead of *value*: numpy would convert the other operand to the
    dtype of *value*.
    """
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def checked_biases(biases: Any) -> dict[int, float]:
    """Return the argument logit_bias with integer ids as keys; None means no biases.

    An id may be a string of digits, as in JSON.

    Raises:
        SettingError: *biases* is not a mapping, a key is not a token id, or a bias is neither -inf
            nor finite.
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
