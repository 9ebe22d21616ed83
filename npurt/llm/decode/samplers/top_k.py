"""Top-k: keep the k candidates with the largest logits, and sort them."""

import numpy as np

from npurt.llm.decode.samplers import in_c
from npurt.llm.decode.samplers.candidates import Candidates, Ids, Logits, Text

BLOCK = 128  # logits; see `best_by_numpy`
FEW = 4096  # largest k for the C function, which uses a heap; numpy handles a larger k


def top_k(candidates: Candidates, _: Text, *, k: int) -> Candidates:
    """Keep the *k* largest logits, all if *k* is 0, in descending order.

    The result's logits are float64, minus the largest logit.
    """
    logits = candidates.logits
    ids = best(logits, k or len(logits))
    kept = logits[ids].astype(np.float64)
    return Candidates(kept - kept[0], ids)


def best(logits: Logits, k: int) -> Ids:
    """Return the ids of the *k* largest logits; ids with a logit of -inf are left out.

    No logit may be NaN.
    """
    if k <= FEW and logits.dtype == np.float32 and in_c.compiled():
        return in_c.best(logits, k)
    return best_by_numpy(logits, k)


def best_by_numpy(logits: Logits, k: int) -> Ids:
    """Compute `best` with numpy.

    Logits below the k-th largest block maximum cannot be among the k largest logits, because k
    blocks have a logit of at least that value.  So only a few hundred of 150,000 logits are sorted.
    """
    n_blocks = len(logits) // BLOCK
    if not 0 < k <= n_blocks:
        order = _sorted(logits)[:k]
    else:
        peaks = logits[: n_blocks * BLOCK].reshape(n_blocks, BLOCK).max(axis=1)
        ids = np.flatnonzero(logits >= np.partition(peaks, -k)[-k])
        order = ids[np.argsort(-logits[ids], kind="stable")[:k]]
    return order[logits[order] > -np.inf]


def _sorted(logits: Logits) -> Ids:
    """Return all ids by descending logit, and by id where logits are equal.

    The sort key is an integer: its upper half sorts by logit, its lower half is the id.  numpy
    sorts integers an order of magnitude faster than it computes an argsort of floats.
    """
    if logits.dtype != np.float32:
        return np.argsort(-logits, kind="stable")
    bits = (np.float32(0) - logits).view(np.uint32)  # 0.0 and -0.0 both give 0.0
    negative = bits >> np.uint32(31) == 1
    ordered = bits ^ np.where(negative, np.uint32(0xFFFF_FFFF), np.uint32(0x8000_0000))
    keys = ordered.astype(np.uint64) << np.uint64(32) | np.arange(len(logits), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFF_FFFF)).astype(np.int64)
