"""Temperature: divide the logits, which makes sampling more random or less random."""

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text, best_of


def temperature(candidates: Candidates, _: Text, *, value: float) -> Candidates:
    """Divide the logits by *value*, which must be above 0."""
    with np.errstate(over="ignore"):  # division by a value near 0 gives -inf, so probability 0
        below = (candidates.logits - candidates.logits[0]) / value
    return Candidates(below, candidates.best_first())


def greedy(candidates: Candidates, _: Text) -> Candidates:
    """Apply temperature 0: keep the token with the largest logit; of several such, the first."""
    return Candidates(np.zeros(1), np.array([best_of(candidates.logits)], np.int64))
