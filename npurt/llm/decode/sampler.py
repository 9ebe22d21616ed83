"""Choose the next token from logits.

The steps have the order of llama.cpp's default chain: repeat penalty, top-k, top-p, min-p,
temperature.  V is the number of logits.  C is the number of remaining candidates, which are sorted
best first, and by id if they are equal.
Source: llama.cpp src/llama-sampling.cpp, MIT: the candidates that each step keeps.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, NumericsError, SettingError
from npurt.runtime.open.arguments import integer, optional_integer

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

BLOCK = 128  # logits; see `top_k`
FINITE = np.finfo(np.float32)


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings of sampling.  The defaults are llama.cpp's.

    Attributes:
        temperature: The divisor of the logits; 0 always takes the best token.
        top_k: Keep the *top_k* best; 0 keeps all.
        top_p: Keep the fewest best that have this probability together; 1 keeps all.
        min_p: Keep those with at least this fraction of the best one's probability; 0 keeps all.
        repeat_penalty: Divides positive logits of recent tokens, multiplies negative ones; 1: none.
        repeat_last_n: The number of recent tokens; -1: all.
        seed: The seed of the random numbers; None: a different one each time.

    Raises:
        SettingError: A value is out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        integer("top_k", self.top_k, 0)
        integer("repeat_last_n", self.repeat_last_n, -1)
        optional_integer("seed", self.seed, 0)
        for name in ("temperature", "top_p", "min_p", "repeat_penalty"):
            value = getattr(self, name)
            _check(name, value, isinstance(value, Real), "a number")
        _check("temperature", self.temperature, 0 <= self.temperature < math.inf, "0 or more")
        _check("top_p", self.top_p, 0 <= self.top_p <= 1, "0 to 1")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "0 to 1")
        _check("repeat_penalty", self.repeat_penalty, 0 < self.repeat_penalty < math.inf, "above 0")


def _check(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise SettingError(f"{name} is {value!r}", remedy=f"{name} must be {allowed}")


class Sampler:
    """Chooses tokens one after another, and never one of the ids *never*."""

    def __init__(self, sampling: Sampling, never: Iterable[int] = ()) -> None:
        self.sampling = sampling
        self._never = frozenset(never)
        self._never_ids = np.array(sorted(self._never), np.int64)
        self._random = np.random.default_rng(sampling.seed)
        self._allowed = np.zeros(0, np.float32)  # [V], reused for each token

    def sample(self, logits: F32, history: Sequence[int] = ()) -> int:
        """Return the next token.

        Args:
            logits: float32 ``[V]``, which stay unchanged.  -inf excludes a token.
            history: The tokens before it, for the repeat penalty.

        Raises:
            LayoutError: *logits* is not one row, or *history* has an id that is not in 0..V-1.
            NumericsError: A logit is NaN or +inf, or all tokens are excluded.
        """
        if self.sampling.temperature == 0 and self.sampling.repeat_penalty == 1:
            token = greedy(logits)
            if token not in self._never:
                return token
        ids, probabilities = self.distribution(logits, history)
        bounds = np.cumsum(probabilities)
        drawn = np.searchsorted(bounds, self._random.random() * bounds[-1], side="right")
        return int(ids[min(int(drawn), len(ids) - 1)])

    def distribution(self, logits: F32, history: Sequence[int] = ()) -> tuple[Ids, F64]:
        """Return the candidates, ids ``[C]``, and their probabilities ``[C]``; see `sample`."""
        if self._allowed.shape != logits.shape:
            self._allowed = np.empty_like(logits)
            _check_ids("what must not be sampled", self._never_ids, len(logits))
        np.copyto(self._allowed, logits)
        self._allowed[self._never_ids] = -np.inf
        return distribution(self._allowed, history, self.sampling)


def distribution(logits: F32, history: Sequence[int], sampling: Sampling) -> tuple[Ids, F64]:
    """Return the candidates, ids ``[C]``, and their probabilities ``[C]``, as *sampling* says.

    Errors as `Sampler.sample`.
    """
    if sampling.repeat_penalty != 1 and sampling.repeat_last_n != 0:
        recent = history if sampling.repeat_last_n < 0 else history[-sampling.repeat_last_n :]
        logits = penalise(logits, recent, sampling.repeat_penalty)
    best = greedy(logits)
    if sampling.temperature == 0:
        return np.array([best], np.int64), np.ones(1)
    ids = top_k(logits, sampling.top_k or len(logits))
    below = logits[ids].astype(np.float64) - float(logits[best])  # [C], 0 for the best
    kept = min(top_p(below, sampling.top_p), min_p(below, sampling.min_p))
    return ids[:kept], softmax(below[:kept], sampling.temperature)


def greedy(logits: F32) -> int:
    """Return the best token, the first of equal ones.  Errors as `Sampler.sample`."""
    if logits.ndim != 1 or logits.dtype != np.float32 or not len(logits):
        raise LayoutError(
            f"logits are {logits.dtype} {logits.shape}, not float32 [V]",
            remedy="pass one row of the model's logits",
        )
    best = int(logits.argmax())  # argmax takes NaN for the largest
    if not math.isfinite(logits[best]):
        raise NumericsError(
            f"the largest logit, of token {best}, is {logits[best]}",
            remedy="run with --verify always, which names a wrong product; or check the weights",
        )
    return best


def penalise(logits: F32, recent: Sequence[int], penalty: float) -> F32:
    """Return *logits* with *penalty* applied to the tokens in *recent*.

    Finite logits stay finite.
    """
    ids = np.unique(np.asarray(recent, np.int64))
    _check_ids("the history", ids, len(logits))
    penalised = logits.copy()
    old, least, most = logits[ids], float(FINITE.tiny), float(FINITE.max)
    factor = np.float32(min(max(penalty, least), most))
    with np.errstate(over="ignore"):
        new = np.clip(np.where(old > 0, old / factor, old * factor), -most, most)
    penalised[ids] = np.where(np.isfinite(old), new, old)
    return penalised


def _check_ids(what: str, ids: Ids, count: int) -> None:
    """Refuse sorted *ids* that are not all in 0..count-1."""
    if len(ids) and not 0 <= ids[0] <= ids[-1] < count:
        raise LayoutError(
            f"{what} goes from {ids[0]} to {ids[-1]}, for {count} logits",
            remedy="pass ids of this model's vocabulary, and logits of all of it",
        )


def top_k(logits: F32, k: int) -> Ids:
    """Return the *k* best ids, or fewer if the others are -inf.  Logits must not be NaN.

    k blocks have a maximum of at least the k-th largest block maximum.  So only logits of at least
    that value can be among the k best.  Of 150,000 logits, a few hundred remain to be sorted.
    """
    ids = np.arange(len(logits))
    n_blocks = len(logits) // BLOCK
    if 0 < k <= n_blocks:
        peaks = logits[: n_blocks * BLOCK].reshape(n_blocks, BLOCK).max(axis=1)
        ids = np.flatnonzero(logits >= np.partition(peaks, -k)[-k])
    best = ids[np.argsort(-logits[ids], kind="stable")[:k]]
    return best[logits[best] > -np.inf]


def top_p(below: F64, p: float) -> int:
    """Return how many of the first of *below* ``[C]`` have probability *p* together."""
    if p >= 1:
        return len(below)
    return min(len(below), int(np.searchsorted(np.cumsum(softmax(below)), p)) + 1)


def min_p(below: F64, p: float) -> int:
    """Return how many of *below* ``[C]`` have at least *p* times the best one's probability."""
    return int(np.count_nonzero(below >= math.log(p))) if p > 0 else len(below)


def softmax(below: F64, temperature: float = 1.0) -> F64:
    """Return the probabilities ``[C]`` of *below* ``[C]``, the logits minus the largest."""
    with np.errstate(over="ignore"):  # a temperature near 0 gives -inf: probability 0
        weights = np.exp(below / temperature)
    return np.asarray(weights / weights.sum(), dtype=np.float64)
