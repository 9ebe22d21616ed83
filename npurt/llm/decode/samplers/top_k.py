"""Top-k: keep the k best, and sort them."""

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Ids, Logits, Text

BLOCK = 128  # logits; see `best`


def top_k(candidates: Candidates, _: Text, *, k: int) -> Candidates:
    """Keep the *k* best, 0: all.  Their logits become float64, and 0 for the best."""
    logits = candidates.logits
    ids = best(logits, k or len(logits))
    kept = logits[ids].astype(np.float64)
    return Candidates(kept - kept[0], ids)


def best(logits: Logits, k: int) -> Ids:
    """Return the *k* best ids, or fewer if the others are -inf.  Logits must not be NaN.

    k blocks have a maximum of at least the k-th largest block maximum.  So only logits of at least
    that value can be among the k best.  Of 150,000 logits, a few hundred remain to be sorted.
    """
    n_blocks = len(logits) // BLOCK
    if not 0 < k <= n_blocks:
        ids = np.arange(len(logits))
    else:
        peaks = logits[: n_blocks * BLOCK].reshape(n_blocks, BLOCK).max(axis=1)
        ids = np.flatnonzero(logits >= np.partition(peaks, -k)[-k])
    order = ids[np.argsort(-logits[ids], kind="stable")[:k]]
    return order[logits[order] > -np.inf]
