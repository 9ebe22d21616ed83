"""The tokens that may come next, and the text before them.

V is the number of logits, C that of candidates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, NumericsError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Logits = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.int64]
Tails = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that may come next.  Samplers return others and leave these unchanged.

    Attributes:
        logits: ``[C]``; float32 before `top_k`, float64 from there on.
        ids: ``[C]``, best first, and by id if they are equal; None before `top_k`: all of 0..V-1,
            of which a logit of -inf excludes one.
    """

    logits: Logits
    ids: Ids | None = None

    def best_first(self) -> Ids:
        """Return the ids, which must be sorted already."""
        assert self.ids is not None, "the candidates are not sorted"
        return self.ids

    def probabilities(self) -> F64:
        """Return the probabilities ``[C]`` of sorted candidates."""
        weights = np.exp(self.logits - self.logits[0])
        return np.asarray(weights / weights.sum(), np.float64)

    def first(self, count: int) -> "Candidates":
        """Return the best *count*, at least one, of sorted candidates."""
        count = max(1, count)
        return Candidates(self.logits[:count], self.best_first()[:count])


@dataclass(frozen=True, slots=True)
class Text:
    """What samplers know beside the candidates.

    Attributes:
        history: The tokens so far.
        chance: A random number of 0 to 1 for samplers that are applied at random.
        breakers: Sequences of tokens that end a repetition: of each first token what follows it.
    """

    history: Sequence[int] = ()
    chance: float = 0.0
    breakers: Mapping[int, Tails] = field(default_factory=dict)

    def last(self, count: int, vocabulary: int) -> Ids:
        """Return the last *count* tokens, -1: all.

        Raises:
            LayoutError: One is not an id below *vocabulary*.
        """
        recent = self.history if count < 0 else self.history[-count:] if count else ()
        ids = np.fromiter(recent, np.int64, len(recent))
        check_ids("the history", ids, vocabulary)
        return ids


def best_of(logits: Logits) -> int:
    """Return the best token, the first of equal ones.

    Raises:
        NumericsError: A logit is NaN or +inf, or all tokens are excluded.
    """
    best = int(logits.argmax())  # argmax takes NaN for the largest
    if not math.isfinite(logits[best]):
        raise NumericsError(
            f"the largest logit, of token {best}, is {logits[best]}",
            remedy="run with --verify always, which names a wrong product; or check the weights",
        )
    return best


def check_ids(what: str, ids: Ids, count: int) -> None:
    """Refuse *ids* that are not all in 0..count-1.

    Raises:
        LayoutError: One is not.
    """
    if len(ids) and not 0 <= ids.min() <= ids.max() < count:
        raise LayoutError(
            f"{what} has ids from {ids.min()} to {ids.max()}, but there are {count} logits",
            remedy="pass ids of this model's vocabulary, and logits of all of it",
        )
