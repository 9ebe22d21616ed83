"""Top-p, or nucleus sampling: keep the fewest that are probable enough together."""

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text


def top_p(candidates: Candidates, _: Text, *, p: float) -> Candidates:
    """Keep the fewest best that have probability *p* together.

    Source: Holtzman and others, "The Curious Case of Neural Text Degeneration" (arXiv 1904.09751).
    """
    return candidates.first(int(np.searchsorted(np.cumsum(candidates.probabilities()), p)) + 1)
