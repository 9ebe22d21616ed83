"""The sampling settings and their ranges."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any

from npurt.errors import SettingError, brief
from npurt.llm.decode.samplers.checks import LARGEST, as_float, checked_biases
from npurt.llm.text.tokenizer import SURROGATE
from npurt.runtime.open.arguments import integer, listed, optional_integer

TEXTS = "a list of strings that are not empty and have no lone surrogates"
MAX_SEED = (1 << 128) - 1
# Numeric settings: minimum, maximum, and the allowed range in the words of an error message.
RANGES = {
    "temperature": (0, math.inf, "0 or more"),
    "top_p": (0, 1, "0 to 1"),
    "min_p": (0, 1, "0 to 1"),
    "typical_p": (0, 1, "0 to 1"),
    "top_n_sigma": (-math.inf, math.inf, "a finite number"),
    "xtc_probability": (0, 1, "0 to 1"),
    "xtc_threshold": (0, 1, "0 to 1"),
    "dry_multiplier": (0, math.inf, "0 or more"),
    "dry_base": (1, math.inf, "1 or more"),
    "repeat_penalty": (math.ulp(0.0), math.inf, "above 0"),
    "frequency_penalty": (-LARGEST, LARGEST, "a number in the range of float32"),
    "presence_penalty": (-LARGEST, LARGEST, "a number in the range of float32"),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling settings.  The defaults are llama.cpp's.

    Attributes:
        temperature: The divisor of the logits.  0 always chooses the token with the largest logit
            after biases and penalties.
        top_k: Keep the *top_k* most probable tokens; 0 or -1 keeps all.
        top_p: Keep the fewest most probable tokens with this total probability; 1 keeps all.
        min_p: Keep tokens with at least this fraction of the largest probability; 0 keeps all.
        typical_p: Keep the most typical tokens with this total probability; 1 keeps all.
        top_n_sigma: Keep tokens whose logit is at most this number of standard deviations below the
            largest logit; 0 or less keeps all.
        xtc_probability: The probability, for each token, that XTC drops all predictable candidates
            except the least probable of them.
        xtc_threshold: The smallest probability of a predictable candidate.  Above 0.5, XTC drops
            nothing.
        dry_multiplier: The penalty for extending a repetition of *dry_allowed_length* tokens; 0
            turns DRY off.
        dry_base: The factor of the penalty for each further token of the repetition.
        dry_allowed_length: The length from which repetitions are penalised, in tokens.
        dry_penalty_last_n: The number of last tokens to search for repetitions; -1 searches all.
        dry_sequence_breakers: Strings that end a repetition.
        repeat_penalty: Divides positive logits of recent tokens and multiplies negative ones; 1
            changes nothing.
        frequency_penalty: Subtracted from a token's logit once for each recent occurrence.
        presence_penalty: Subtracted once from the logit of each recent token.
        repeat_last_n: The number of recent tokens of prompt and completion; -1 includes all.
        logit_bias: Maps token ids to numbers that are added to their logits; -inf excludes a token.
        seed: The seed of the random numbers; None chooses a random seed.

    Raises:
        SettingError: A value is out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, check in CHECKS.items():
            value = getattr(self, name)
            if value is not DEFAULTS[name]:  # the defaults are right
                object.__setattr__(self, name, check(name, value))


def _number(name: str, value: Any) -> float:
    minimum, maximum, allowed = RANGES[name]
    if not isinstance(value, Real):
        raise _wrong(name, value, "a number")
    number = as_float(value)
    if not minimum <= number <= maximum or not math.isfinite(number):
        raise _wrong(name, value, allowed)
    return number


def _last(name: str, value: Any) -> int:
    """Return the number of last tokens *value*; -1 means all of them."""
    return integer(name, value, -1)


def _top_k(name: str, value: Any) -> int:
    return max(0, integer(name, value, -1))


def _length(name: str, value: Any) -> int:
    return integer(name, value, 0)


def _seed(name: str, value: Any) -> int | None:
    seed = optional_integer(name, value, 0)
    if seed is not None and seed > MAX_SEED:
        raise _wrong(name, value, f"0 to {MAX_SEED}")
    return seed


def _breakers(name: str, value: Any) -> tuple[str, ...]:
    texts = value if isinstance(value, str) else tuple(listed(name, value, TEXTS))
    if isinstance(texts, str) or not all(
        isinstance(text, str) and text and not SURROGATE.search(text) for text in texts
    ):
        raise _wrong(name, texts, TEXTS)
    return texts


def _wrong(name: str, value: object, allowed: str) -> SettingError:
    return SettingError(f"{name} is {brief(value, 100)}", remedy=f"{name} must be {allowed}")


# The function that checks each setting, and returns it with its type.
CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(RANGES, _number),
    "top_k": _top_k,
    "repeat_last_n": _last,
    "dry_penalty_last_n": _last,
    "dry_allowed_length": _length,
    "dry_sequence_breakers": _breakers,
    "logit_bias": lambda _, value: checked_biases(value),
    "seed": _seed,
}
DEFAULTS = {each.name: each.default for each in fields(Sampling)}
