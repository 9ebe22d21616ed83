"""Compute log probabilities of tokens from the model's logits, before any sampler changes them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npurt.llm.decode.samplers.candidates import F32
from npurt.llm.decode.samplers.top_k import best
from npurt.llm.session.context import Context

ROWS = 64  # prompt tokens whose logits are in memory at a time


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log probability of a token.

    Attributes:
        token: The token's id.
        logprob: The natural logarithm of the token's probability, from the model's logits.
        top: The ids and log probabilities of the likeliest tokens, in descending order.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def logprob_of(logits: F32, token: int, top: int) -> TokenLogprob:
    """Return the log probabilities of *token* and of the *top* likeliest tokens."""
    largest = float(logits.max())
    below = np.subtract(logits, largest, dtype=np.float64)
    total = largest + float(np.log(np.exp(below).sum()))
    ids = best(logits, top).tolist() if top else []
    likeliest = tuple((i, float(logits[i]) - total) for i in ids)
    return TokenLogprob(token, float(logits[token]) - total, likeliest)


def logprobs_of_prompt(context: Context, ids: Sequence[int], top: int) -> list[TokenLogprob]:
    """Evaluate *ids* in the emptied context; return the log probability of each id but the first.

    Raises:
        ContextFull: There are more ids than the context has positions.
        LayoutError: *ids* are not token ids of the model.
    """
    context.reset()
    found = []
    for start in range(0, len(ids) - 1, ROWS):
        logits = context.eval(ids[start : start + ROWS])
        following = ids[start + 1 : start + 1 + ROWS]
        found += [
            logprob_of(row, token, top) for row, token in zip(logits, following, strict=False)
        ]
    return found
