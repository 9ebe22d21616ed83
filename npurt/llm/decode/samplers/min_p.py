"""Min-p: keep candidates whose probability is at least a fraction of the largest probability."""

import math

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text


def min_p(candidates: Candidates, _: Text, *, p: float) -> Candidates:
    """Keep candidates with at least *p* times the largest probability.  *p* must be above 0.

    Source: Nguyen and others, "Turning Up the Heat: Min-p Sampling" (arXiv 2407.01082).
    """
    below = candidates.logits - candidates.logits[0]
    return candidates.first(int(np.count_nonzero(below >= math.log(p))))
