"""XTC ("exclude top choices"): sometimes drop the most predictable tokens."""

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text


def xtc(candidates: Candidates, text: Text, *, probability: float, threshold: float) -> Candidates:
    """With *probability*, drop all but the worst of those that have at least *threshold*.

    Source: p-e-w, oobabooga/text-generation-webui pull request 6335; llama.cpp
    src/llama-sampling.cpp, MIT: one random number a token.
    """
    if text.chance >= probability:
        return candidates
    predictable = int(np.count_nonzero(candidates.probabilities() >= threshold))
    dropped = max(0, predictable - 1)
    return Candidates(candidates.logits[dropped:], candidates.best_first()[dropped:])
