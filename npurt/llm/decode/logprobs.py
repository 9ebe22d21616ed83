"""The log probabilities of tokens, from the model's logits as they are, before all samplers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npurt.llm.decode.samplers.candidates import F32
from npurt.llm.decode.samplers.top_k import best
from npurt.llm.session.context import Context

ROWS = 64  # of the prompt, whose logits are in memory at a time


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of a text, and how likely it was.

    Attributes:
        token: Its id.
        logprob: The natural logarithm of its probability, by the model's logits.
        top: The likeliest tokens with theirs, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def logprob_of(logits: F32, token: int, top: int) -> TokenLogprob:
    """Return the log probability of *token*, and those of the *top* likeliest."""
    largest = float(logits.max())
    below = np.subtract(logits, largest, dtype=np.float64)
    total = largest + float(np.log(np.exp(below).sum()))
    ids = best(logits, top).tolist() if top else []
    likeliest = tuple((i, float(logits[i]) - total) for i in ids)
    return TokenLogprob(token, float(logits[token]) - total, likeliest)


def logprobs_of_prompt(context: Context, ids: Sequence[int], top: int) -> list[TokenLogprob]:
    """Evaluate *ids* from the first one; return how likely each is, from the second one on.

    Raises:
        ContextFull: They do not fit.
        LayoutError: They are no token ids.
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
