"""Top-n-sigma: keep tokens whose logit is within n standard deviations of the largest logit."""

import math

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text


def top_n_sigma(candidates: Candidates, _: Text, *, n: float) -> Candidates:
    """Exclude tokens whose logit is more than *n* standard deviations below the largest logit.

    The standard deviation does not include tokens that are excluded already.
    Source: Tang and others, "Top-n sigma: Not All Logits Are You Need" (arXiv 2411.07641).
    """
    best = candidates.logits.max()
    excluded = candidates.logits == -np.inf
    count = len(excluded) - int(np.count_nonzero(excluded))
    with np.errstate(over="ignore", invalid="ignore"):  # after an overflow, all tokens are kept
        offsets = candidates.logits - best  # 0 or less
        np.putmask(offsets, excluded, 0)
        offsets -= offsets.sum(dtype=np.float64) / count
        np.putmask(offsets, excluded, 0)
        variance = float(np.square(offsets).sum(dtype=np.float64)) / count
        below = candidates.logits < float(best) - n * math.sqrt(variance)
    logits = candidates.logits.copy()
    np.putmask(logits, below, -np.inf)
    return Candidates(logits)
