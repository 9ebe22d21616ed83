"""XTC ("exclude top choices"): drop the most probable tokens with a given probability."""

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text


def xtc(candidates: Candidates, text: Text, *, probability: float, threshold: float) -> Candidates:
    """Drop the candidates with at least *threshold*, except the least probable of them.

    This happens with *probability* for each token.
    Sources: p-e-w, oobabooga/text-generation-webui pull request 6335; llama.cpp
    src/llama-sampling.cpp, MIT: one random number a token.
    """
    if text.chance >= probability:
        return candidates
    predictable = int(np.count_nonzero(candidates.probabilities() >= threshold))
    dropped = max(0, predictable - 1)
    return Candidates(candidates.logits[dropped:], candidates.best_first()[dropped:])
