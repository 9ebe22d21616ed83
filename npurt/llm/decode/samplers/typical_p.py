"""Locally typical sampling: keep the tokens whose surprise is near the mean surprise."""

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text


def typical_p(candidates: Candidates, _: Text, *, p: float) -> Candidates:
    """Keep the fewest most typical tokens with a total probability above *p*.

    The surprise of a token is the negative logarithm of its probability.  The mean surprise is the
    entropy.  The nearer a token's surprise is to the entropy, the more typical the token.
    Source: Meister and others, "Locally Typical Sampling" (arXiv 2202.00666);
    llama.cpp src/llama-sampling.cpp, MIT: the total probability is above *p*.
    """
    below = candidates.logits - candidates.logits[0]
    surprise = np.log(np.exp(below).sum()) - below
    probabilities = np.exp(-surprise)
    entropy = float((probabilities * surprise).sum())
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    count = int(np.searchsorted(np.cumsum(probabilities[order]), p, side="right")) + 1
    kept = np.sort(order[:count])  # by descending logit again
    return Candidates(candidates.logits[kept], candidates.best_first()[kept])
