"""Locally typical sampling: keep the tokens that are about as surprising as expected."""

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text


def typical_p(candidates: Candidates, _: Text, *, p: float) -> Candidates:
    """Keep the fewest of the most typical tokens that have more than *p* together.

    A token is typical if its surprise, the negative logarithm of its probability, is near the mean
    surprise, the entropy.
    Source: Meister and others, "Locally Typical Sampling" (arXiv 2202.00666);
    llama.cpp src/llama-sampling.cpp, MIT: more than *p*.
    """
    below = candidates.logits - candidates.logits[0]
    surprise = np.log(np.exp(below).sum()) - below
    probabilities = np.exp(-surprise)
    entropy = float((probabilities * surprise).sum())
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    count = int(np.searchsorted(np.cumsum(probabilities[order]), p, side="right")) + 1
    kept = np.sort(order[:count])  # best first again
    return Candidates(candidates.logits[kept], candidates.best_first()[kept])
