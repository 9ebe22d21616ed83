"""Min-p: keep what is probable enough beside the best."""

import math

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text


def min_p(candidates: Candidates, _: Text, *, p: float) -> Candidates:
    """Keep those with at least *p*, above 0, times the best one's probability.

    Source: Nguyen and others, "Turning Up the Heat: Min-p Sampling" (arXiv 2407.01082).
    """
    below = candidates.logits - candidates.logits[0]
    return candidates.first(int(np.count_nonzero(below >= math.log(p))))
