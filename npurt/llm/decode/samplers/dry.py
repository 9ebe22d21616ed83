"""DRY ("don't repeat yourself"): penalise tokens that would prolong a repetition.

A token is penalised if the text ends with a sequence that occurred before with this token after it.
The penalty grows exponentially with the length of the sequence.
Sources: p-e-w, oobabooga/text-generation-webui pull request 5677: the idea and the formula;
llama.cpp src/llama-sampling.cpp, MIT: sequence breakers, and which occurrences count.
"""

from collections.abc import Mapping

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Ids, Tails, Text
from npurt.llm.decode.samplers.checks import LARGEST


def dry(
    candidates: Candidates, text: Text, *, multiplier: float, base: float, allowed: int, last: int
) -> Candidates:
    """Subtract ``multiplier * base ** (length - allowed)`` from tokens that prolong a repetition.

    Args:
        multiplier: The penalty of a token that prolongs *allowed* tokens.
        base: What each further token multiplies it by.
        allowed: The length from which repetitions are penalised.
        last: The tokens that are looked at; -1: all.
    """
    tokens = text.last(last, len(candidates.logits))
    reach = reach_of(tokens, text.breakers)
    if reach < max(1, allowed):
        return candidates
    lengths = repeated(tokens, allowed, reach)
    worst = np.zeros(len(candidates.logits), np.int64)
    np.maximum.at(worst, tokens[1:], lengths)  # by the token after each occurrence
    single = [head for head, tails in text.breakers.items() if () in tails]
    worst[[head for head in single if head < len(worst)]] = 0
    ids = np.flatnonzero(worst >= max(1, allowed))
    logits = candidates.logits.copy()
    with np.errstate(over="ignore"):
        penalty = multiplier * np.power(base, worst[ids] - allowed, dtype=np.float64)
        lower = np.maximum(logits[ids] - penalty, -LARGEST)
    logits[ids] = np.where(np.isfinite(logits[ids]), lower, logits[ids])
    return Candidates(logits)


def reach_of(tokens: Ids, breakers: Mapping[int, Tails]) -> int:
    """Return how many of the last *tokens* are after the last sequence breaker."""
    heads = np.fromiter(breakers, np.int64, len(breakers))
    for at in np.flatnonzero(np.isin(tokens, heads))[::-1].tolist():
        follow = tuple(tokens[at + 1 :][:20].tolist())
        fits = [len(tail) for tail in breakers[int(tokens[at])] if tail == follow[: len(tail)]]
        if fits:
            return int(len(tokens) - 1 - at - max(fits))
    return len(tokens)


def repeated(tokens: Ids, least: int, most: int) -> Ids:
    """Return for each token how many tokens up to it, at most *most*, equal the end of *tokens*.

    *tokens* are ``[N]``; the result is ``[N - 1]``, without the last token.  Lengths below *least*
    are 0.

    Read backwards, this is how far the text at each place equals its beginning: the Z algorithm
    (Gusfield, Algorithms on Strings, Trees, and Sequences, 1.4) needs at most N comparisons beside
    one for each place.  Places where the last token does not occur are skipped.
    """
    lengths = np.zeros(len(tokens) - 1, np.int64)
    places = np.flatnonzero(tokens[-2::-1] == tokens[-1]) + 1  # from the end, 0: the last token
    if not len(places):
        return lengths
    backwards = tokens[::-1].tolist()
    found: dict[int, int] = {}
    left = right = 0  # the equal part that reaches furthest begins and ends there
    for place in places.tolist():
        size = min(found.get(place - left, 0), right - place) if place < right else 0
        if place + size >= right:
            limit = min(most, len(backwards) - place)
            while size < limit and backwards[place + size] == backwards[size]:
                size += 1
            left, right = place, place + size
        found[place] = size
    sizes = np.fromiter(found.values(), np.int64, len(found))
    lengths[len(tokens) - 1 - places] = np.where(sizes >= least, sizes, 0)
    return lengths
