"""Top-p, or nucleus sampling: keep the fewest candidates with a given total probability."""

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text


def top_p(candidates: Candidates, _: Text, *, p: float) -> Candidates:
    """Keep the fewest most probable candidates with a total probability of at least *p*.

    Source: Holtzman and others, "The Curious Case of Neural Text Degeneration" (arXiv 1904.09751).
    """
    return candidates.first(int(np.searchsorted(np.cumsum(candidates.probabilities()), p)) + 1)
