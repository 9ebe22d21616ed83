"""Temperature: how much better candidates are preferred."""

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text, best_of


def temperature(candidates: Candidates, _: Text, *, value: float) -> Candidates:
    """Divide the logits by *value*, above 0."""
    with np.errstate(over="ignore"):  # a value near 0 gives -inf: probability 0
        below = (candidates.logits - candidates.logits[0]) / value
    return Candidates(below, candidates.best_first())


def greedy(candidates: Candidates, _: Text) -> Candidates:
    """Keep the best of all tokens, the first of equal ones: what temperature 0 means."""
    return Candidates(np.zeros(1), np.array([best_of(candidates.logits)], np.int64))
