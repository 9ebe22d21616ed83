"""DRY ("don't repeat yourself"): penalise tokens that would extend a repetition.

A token is penalised if the last tokens occurred earlier, followed by that token.  The penalty grows
exponentially with the number of repeated tokens.
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
    """Subtract ``multiplier * base ** (length - allowed)`` from tokens that extend a repetition.

    Args:
        multiplier: The penalty of a token that extends a repetition of *allowed* tokens.
        base: The factor of the penalty for each further repeated token.
        allowed: The length from which repetitions are penalised, in tokens.
        last: The number of last tokens to search for repetitions; -1 searches all.
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
    """Return the number of *tokens* after the last sequence breaker."""
    heads = np.fromiter(breakers, np.int64, len(breakers))
    for at in np.flatnonzero(np.isin(tokens, heads))[::-1].tolist():
        follow = tuple(tokens[at + 1 :][:20].tolist())
        fits = [len(tail) for tail in breakers[int(tokens[at])] if tail == follow[: len(tail)]]
        if fits:
            return int(len(tokens) - 1 - at - max(fits))
    return len(tokens)


def repeated(tokens: Ids, minimum: int, maximum: int) -> Ids:
    """Return the length of the longest common suffix of each prefix of *tokens* and *tokens*.

    *tokens* has the shape ``[N]``.  Element i of the result, ``[N - 1]``, is for the prefix that
    ends with token i.  Lengths above *maximum* become *maximum*; lengths below *minimum* become 0.

    In the reversed sequence, this is the Z function: the length of the match between each suffix
    and the beginning.  The Z algorithm (Gusfield, Algorithms on Strings, Trees, and Sequences, 1.4)
    needs one comparison for each position and at most N more.  Positions whose token differs from
    the last token are skipped: their length is 0.
    """
    lengths = np.zeros(len(tokens) - 1, np.int64)
    places = np.flatnonzero(tokens[-2::-1] == tokens[-1]) + 1  # from the end, 0: the last token
    if not len(places):
        return lengths
    backwards = tokens[::-1].tolist()
    found: dict[int, int] = {}
    left = right = 0  # begin and end of the match with the largest end so far
    for place in places.tolist():
        size = min(found.get(place - left, 0), right - place) if place < right else 0
        if place + size >= right:
            limit = min(maximum, len(backwards) - place)
            while size < limit and backwards[place + size] == backwards[size]:
                size += 1
            left, right = place, place + size
        found[place] = size
    sizes = np.fromiter(found.values(), np.int64, len(found))
    lengths[len(tokens) - 1 - places] = np.where(sizes >= minimum, sizes, 0)
    return lengths
