"""Samplers and logits processors, as functions of numpy arrays.

A sampler is a function of log probabilities ``[..., V]`` that returns ids ``[...]``.  A processor
is a function of the tokens so far, ``[T]``, and logits ``[1, V]`` that returns logits.
Source: mlx-lm 0.32.2, mlx_lm/sample_utils.py, MIT: names, order and formulas.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, SettingError, brief
from npurt.llm.decode.samplers.checks import checked_biases, finite
from npurt.runtime.open.arguments import integer, optional_integer

Array = npt.NDArray[Any]
Sampler = Callable[[Array], Array]
LogitsProcessor = Callable[[Array, Array], Array]


def make_sampler(
    temp: float = 0.0,
    top_p: float = 0.0,
    min_p: float = 0.0,
    min_tokens_to_keep: int = 1,
    top_k: int = 0,
    xtc_probability: float = 0.0,
    xtc_threshold: float = 0.1,
    xtc_special_tokens: Sequence[int] | None = None,
    *,
    seed: int | None = None,
) -> Sampler:
    """Return a sampler that applies *top_p*, *min_p*, XTC, *top_k* and *temp*, then samples.

    Args:
        temp: The divisor of the log probabilities; 0 selects the most likely token and disables all
            other arguments.
        top_p: Keep the smallest set of most likely tokens with this total probability; 0 or 1
            keeps all.
        min_p: Keep tokens with at least this fraction of the highest probability; 0 keeps all.
        min_tokens_to_keep: The minimum number of tokens that *min_p* keeps.
        xtc_probability: The probability of XTC, which removes all tokens above *xtc_threshold*
            except the least likely of them.
        xtc_threshold: The probability above which XTC removes tokens.
        xtc_special_tokens: Ids that XTC never removes.
        top_k: Keep the *top_k* most likely tokens; 0 keeps all.
        seed: The seed of the random numbers; mlx-lm uses mlx.core.random instead.

    Raises:
        SettingError: A value is out of range.
    """
    for name, value in (
        ("temp", temp), ("top_p", top_p), ("min_p", min_p), ("xtc_probability", xtc_probability),
        ("xtc_threshold", xtc_threshold),
    ):  # fmt: skip
        finite(name, value)
    integer("top_k", top_k)
    integer("min_tokens_to_keep", min_tokens_to_keep, 1)
    _require("temp", temp, temp >= 0, "0 or more")
    _require("min_p", min_p, 0 <= min_p <= 1, "0 to 1")
    _require("xtc_probability", xtc_probability, 0 <= xtc_probability <= 1, "0 to 1")
    _require("xtc_threshold", xtc_threshold, 0 <= xtc_threshold <= 0.5, "0 to 0.5")
    if temp == 0:
        return lambda logprobs: np.argmax(logprobs, axis=-1)
    random = np.random.default_rng(optional_integer("seed", seed, 0))

    def sampler(logprobs: Array) -> Array:
        kept = np.array(logprobs, np.float64)
        if 0 < top_p < 1:
            kept = apply_top_p(kept, top_p)
        if min_p:
            kept = apply_min_p(kept, min_p, min_tokens_to_keep)
        if xtc_probability:
            special = xtc_special_tokens or ()
            kept = apply_xtc(kept, xtc_probability, xtc_threshold, special, random=random)
        if top_k > 0:
            kept = apply_top_k(kept, top_k)
        # The argmax of logits plus Gumbel noise is a sample from their softmax.
        below = kept - kept.max(axis=-1, keepdims=True)  # 0 for the most likely token
        with np.errstate(over="ignore"):
            scaled = np.where(below < 0, below / temp, 0.0)
        chosen: Array = np.argmax(scaled + random.gumbel(size=kept.shape), axis=-1)
        return chosen

    return sampler


def apply_top_k(logprobs: Array, top_k: int) -> Array:
    """Return *logprobs* with -inf for all tokens except the *top_k* most likely.

    Raises:
        SettingError: *top_k* is not in the range from 1 to V - 1.
    """
    count = logprobs.shape[-1]
    _require("top_k", top_k, 0 < top_k < count, f"1 to {count - 1}")
    worse = np.argsort(-logprobs, axis=-1, kind="stable")[..., top_k:]
    kept = logprobs.copy()
    np.put_along_axis(kept, worse, -np.inf, axis=-1)
    return kept


def apply_min_p(logprobs: Array, min_p: float, min_tokens_to_keep: int = 1) -> Array:
    """Return *logprobs* with -inf for probabilities below *min_p* times the highest."""
    order = np.argsort(-logprobs, axis=-1, kind="stable")
    below = logprobs < logprobs.max(axis=-1, keepdims=True) + math.log(min_p)
    np.put_along_axis(below, order[..., :min_tokens_to_keep], False, axis=-1)
    return np.where(below, -np.inf, logprobs)


def apply_top_p(logprobs: Array, top_p: float) -> Array:
    """Return *logprobs* with -inf outside the smallest set of most likely tokens.

    The set has a total probability of at least *top_p*.
    """
    order = np.argsort(-logprobs, axis=-1, kind="stable")
    best = np.exp(np.take_along_axis(logprobs, order, axis=-1).astype(np.float64))
    better = np.cumsum(best, axis=-1) - best  # total probability of the more likely tokens
    drop = better >= top_p * best.sum(axis=-1, keepdims=True)
    kept = logprobs.copy()
    np.put_along_axis(
        kept, order, np.where(drop, -np.inf, np.take_along_axis(kept, order, -1)), axis=-1
    )
    return kept


def apply_xtc(
    logits: Array,
    xtc_probability: float,
    xtc_threshold: float,
    xtc_special_tokens: Sequence[int],
    *,
    random: np.random.Generator | None = None,
) -> Array:
    """Apply XTC: return *logits* with -inf for tokens above a threshold except the least likely.

    Args:
        logits: Logits or log probabilities, ``[..., V]``.
        xtc_probability: The probability that XTC is applied; otherwise *logits* are unchanged.
        xtc_threshold: The probability above which tokens are removed.
        xtc_special_tokens: Ids that are never removed.
        random: The random number generator.

    Raises:
        SettingError: A value is out of range.
    """
    _require("xtc_probability", xtc_probability, 0 <= xtc_probability <= 1, "0 to 1")
    _require("xtc_threshold", xtc_threshold, 0 <= xtc_threshold <= 0.5, "0 to 0.5")
    if (random or np.random.default_rng()).random() >= xtc_probability:
        return logits
    chances = np.exp(np.asarray(logits - logits.max(axis=-1, keepdims=True), np.float64))
    chances /= chances.sum(axis=-1, keepdims=True)
    minimum = np.where(chances > xtc_threshold, chances, np.inf).min(axis=-1, keepdims=True)
    removed = chances > minimum
    special = [integer("one of xtc_special_tokens", i, 0) for i in xtc_special_tokens]
    if max(special, default=0) >= logits.shape[-1]:
        raise LayoutError(
            f"xtc_special_tokens has {brief(max(special))}, which is not one of "
            f"{logits.shape[-1]} tokens",
            remedy="use ids of the model's tokens",
        )
    removed[..., special] = False
    return np.where(removed, -np.inf, logits)


def make_logits_processors(
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float | None = None,
    repetition_context_size: int | None = 20,
    presence_penalty: float | None = None,
    presence_context_size: int | None = 20,
    frequency_penalty: float | None = None,
    frequency_context_size: int | None = 20,
) -> list[LogitsProcessor]:
    """Return a processor for each bias or penalty that is neither None nor 0.

    Args:
        logit_bias: Token id -> number added to the token's logit.
        repetition_penalty: The divisor of the positive logits and the factor of the negative
            logits of recent tokens.
        repetition_context_size: The number of last tokens that *repetition_penalty* applies to.
        presence_penalty: Subtracted from the logit of each recent token.
        presence_context_size: The number of last tokens that *presence_penalty* applies to.
        frequency_penalty: Subtracted from a token's logit for each recent occurrence.
        frequency_context_size: The number of last tokens that *frequency_penalty* applies to.

    Raises:
        SettingError: *repetition_penalty* is negative, or a value is not of its type.
    """
    processors: list[LogitsProcessor] = []
    biases = checked_biases(logit_bias)
    if biases:
        processors.append(_bias(biases))
    if repetition_penalty is not None and finite("repetition_penalty", repetition_penalty):
        processors.append(make_repetition_penalty(repetition_penalty, repetition_context_size))
    if presence_penalty is not None and finite("presence_penalty", presence_penalty):
        processors.append(make_presence_penalty(presence_penalty, presence_context_size))
    if frequency_penalty is not None and finite("frequency_penalty", frequency_penalty):
        processors.append(make_frequency_penalty(frequency_penalty, frequency_context_size))
    return processors


def _bias(biases: Mapping[int, float]) -> LogitsProcessor:
    ids, values = list(biases), np.array(list(biases.values()), np.float32)

    def processor(_: Array, logits: Array) -> Array:
        if not all(0 <= token < logits.shape[-1] for token in ids):
            raise LayoutError(
                f"logit_bias has a token that is not one of {logits.shape[-1]}",
                remedy="use ids of the model's tokens",
            )
        biased = logits.copy()
        biased[:, ids] += values
        return biased

    return processor


def make_repetition_penalty(penalty: float, context_size: int | None = 20) -> LogitsProcessor:
    """Return a processor that divides positive and multiplies negative logits of recent tokens.

    Raises:
        SettingError: *penalty* is not positive.
    """
    _require("penalty", penalty, finite("penalty", penalty) > 0, "above 0")
    optional_integer("context_size", context_size, 0)

    def processor(tokens: Array, logits: Array) -> Array:
        recent, lower = np.unique(_last(tokens, context_size)), logits.copy()
        old = lower[:, recent]
        lower[:, recent] = np.where(old < 0, old * penalty, old / penalty)
        return lower

    return processor


def make_presence_penalty(penalty: float, context_size: int | None = 20) -> LogitsProcessor:
    """Return a processor that subtracts *penalty* from the logit of each recent token."""
    finite("penalty", penalty)
    optional_integer("context_size", context_size, 0)

    def processor(tokens: Array, logits: Array) -> Array:
        lower = logits.copy()
        lower[:, np.unique(_last(tokens, context_size))] -= penalty
        return lower

    return processor


def make_frequency_penalty(penalty: float, context_size: int | None = 20) -> LogitsProcessor:
    """Return a processor that subtracts *penalty* per recent occurrence of a token."""
    finite("penalty", penalty)
    optional_integer("context_size", context_size, 0)

    def processor(tokens: Array, logits: Array) -> Array:
        lower = logits.copy()
        recent, counts = np.unique(_last(tokens, context_size), return_counts=True)
        lower[:, recent] -= np.float32(penalty) * counts.astype(np.float32)
        return lower

    return processor


def _last(tokens: Array, count: int | None) -> Array:
    """Return the last *count* of *tokens* as an index array; None returns all."""
    ids = np.asarray(tokens, np.intp)
    return ids if count is None else ids[max(0, len(ids) - count) :]


def _require(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise SettingError(f"{name} is {brief(value)}", remedy=f"{name} must be {allowed}")
