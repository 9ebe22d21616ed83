"""Penalties: lower the logits of tokens that occur among the last tokens."""

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text

FINITE = np.finfo(np.float32)


def penalties(
    candidates: Candidates,
    text: Text,
    *,
    repeat: float,
    frequency: float,
    presence: float,
    last: int,
) -> Candidates:
    """Penalise the *last* tokens of *text*; -1 penalises all tokens.  Finite logits stay finite.

    Args:
        repeat: Divides positive logits and multiplies negative ones; 1 changes nothing.
        frequency: Subtracted from a token's logit once for each occurrence.
        presence: Subtracted once from the logit of each token that occurs.

    Sources: Keskar and others, "CTRL" (arXiv 1909.05858), 4.1: the repeat penalty; OpenAI,
    "Frequency and presence penalties": the formula; llama.cpp src/llama-sampling.cpp, MIT: the
    order of the three penalties, and the multiplication of negative logits.
    """
    tokens, counts = np.unique(text.last(last, len(candidates.logits)), return_counts=True)
    logits = candidates.logits.copy()
    old, maximum = logits[tokens], float(FINITE.max)
    factor = np.float32(min(max(repeat, float(FINITE.tiny)), maximum))
    with np.errstate(over="ignore"):
        new = np.clip(np.where(old > 0, old / factor, old * factor), -maximum, maximum)
        if frequency or presence:
            new = np.clip(new - (counts * frequency + presence), -maximum, maximum)
    logits[tokens] = np.where(np.isfinite(old), new, old)
    return Candidates(logits)
