"""Top-k: keep the k best, and sort them."""

from collections.abc import Callable

import numpy as np

from npurt.cpu.kernels import abi
from npurt.cpu.pool import best as native
from npurt.errors import DeviceNotFound
from npurt.llm.decode.samplers.candidates import F32, Candidates, Ids, Logits, Text
from npurt.once import once

BLOCK = 128  # logits; see `best_by_numpy`
FEW = 4096  # candidates that C keeps in a heap; of more, numpy sorts all


def top_k(candidates: Candidates, _: Text, *, k: int) -> Candidates:
    """Keep the *k* best, 0: all.  Their logits become float64, and 0 for the best."""
    logits = candidates.logits
    ids = best(logits, k or len(logits))
    kept = logits[ids].astype(np.float64)
    return Candidates(kept - kept[0], ids)


def best(logits: Logits, k: int) -> Ids:
    """Return the *k* best ids, or fewer if the others are -inf.  Logits must not be NaN."""
    if k <= FEW and logits.dtype == np.float32 and (in_c := _native()):
        return in_c(logits, k)
    return best_by_numpy(logits, k)


@once
def _native() -> Callable[[F32, int], Ids] | None:
    """Return `best` in C; None where nothing is compiled, as the device numpy needs nothing."""
    try:
        abi.lib()
    except DeviceNotFound:
        return None
    return native.best


def best_by_numpy(logits: Logits, k: int) -> Ids:
    """Do as `best`.

    k blocks have a maximum of at least the k-th largest block maximum.  So only logits of at least
    that value can be among the k best.  Of 150,000 logits, a few hundred remain to be sorted.
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
    """Return all ids, the best first, and by id if they are equal.

    An integer has the logit's order in its upper half and the id below: numpy sorts integers an
    order of magnitude faster than it sorts floats with their places.
    """
    if logits.dtype != np.float32:
        return np.argsort(-logits, kind="stable")
    bits = (np.float32(0) - logits).view(np.uint32)  # 0 - 0.0 is 0 - -0.0
    negative = bits >> np.uint32(31) == 1
    ordered = bits ^ np.where(negative, np.uint32(0xFFFF_FFFF), np.uint32(0x8000_0000))
    keys = ordered.astype(np.uint64) << np.uint64(32) | np.arange(len(logits), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFF_FFFF)).astype(np.int64)
