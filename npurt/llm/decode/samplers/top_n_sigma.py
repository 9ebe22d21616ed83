"""Top-n-sigma: keep what is within n standard deviations of the best logit."""

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text


def top_n_sigma(candidates: Candidates, _: Text, *, n: float) -> Candidates:
    """Exclude tokens whose logit is more than *n* standard deviations below the best one.

    Excluded tokens do not count in the deviation.
    Source: Tang and others, "Top-n sigma: Not All Logits Are You Need" (arXiv 2411.07641).
    """
    logits = candidates.logits
    alive = logits[logits > -np.inf]
    least = float(alive.max()) - n * float(alive.std(dtype=np.float64))
    kept = logits.copy()
    kept[logits < least] = -np.inf
    return Candidates(kept)
