"""Lower the logits of tokens that the text has already."""

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
    """Penalise the *last* tokens of *text*; -1: all.  Finite logits stay finite.

    Args:
        repeat: Divides positive logits, multiplies negative ones; 1: none.
        frequency: Subtracted for each time that the token occurs.
        presence: Subtracted once.

    Sources: Keskar and others, "CTRL" (arXiv 1909.05858), 4.1: the repeat penalty; OpenAI,
    "Frequency and presence penalties": the formula; llama.cpp src/llama-sampling.cpp, MIT: the
    order of the three, and what is done with negative logits.
    """
    tokens, counts = np.unique(text.last(last, len(candidates.logits)), return_counts=True)
    logits = candidates.logits.copy()
    old, most = logits[tokens], float(FINITE.max)
    factor = np.float32(min(max(repeat, float(FINITE.tiny)), most))
    with np.errstate(over="ignore"):
        new = np.clip(np.where(old > 0, old / factor, old * factor), -most, most)
        if frequency or presence:
            new = np.clip(new - (counts * frequency + presence), -most, most)
    logits[tokens] = np.where(np.isfinite(old), new, old)
    return Candidates(logits)
