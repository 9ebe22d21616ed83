"""The sampling settings and their ranges."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real

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
    "repeat_penalty": (0, math.inf, "above 0"),
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
        top_k = integer("top_k", self.top_k, -1)
        object.__setattr__(self, "top_k", max(0, top_k))
        integer("repeat_last_n", self.repeat_last_n, -1)
        integer("dry_penalty_last_n", self.dry_penalty_last_n, -1)
        integer("dry_allowed_length", self.dry_allowed_length, 0)
        seed = optional_integer("seed", self.seed, 0)
        _check("seed", seed, seed is None or seed <= MAX_SEED, f"0 to {MAX_SEED}")
        for name, (minimum, maximum, allowed) in RANGES.items():
            value = getattr(self, name)
            _check(name, value, isinstance(value, Real), "a number")
            number = as_float(value)
            _check(name, value, minimum <= number <= maximum and math.isfinite(number), allowed)
            object.__setattr__(self, name, number)
        _check("repeat_penalty", self.repeat_penalty, self.repeat_penalty > 0, "above 0")
        texts = self.dry_sequence_breakers
        if not isinstance(texts, str):
            texts = listed("dry_sequence_breakers", texts, TEXTS)
            object.__setattr__(self, "dry_sequence_breakers", tuple(texts))
        right = not isinstance(texts, str) and all(
            isinstance(text, str) and text and not SURROGATE.search(text) for text in texts
        )
        _check("dry_sequence_breakers", texts, right, TEXTS)
        object.__setattr__(self, "logit_bias", checked_biases(self.logit_bias))


def _check(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise SettingError(f"{name} is {brief(value, 100)}", remedy=f"{name} must be {allowed}")
