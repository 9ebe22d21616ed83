"""The input and output of samplers: the candidates for the next token and the tokens before it.

V is the number of logits and C the number of candidates.
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
    """The candidates for the next token.  Immutable: samplers return new ones.

    Attributes:
        logits: ``[C]``; float32 before `top_k`, float64 after it.
        ids: ``[C]``, sorted by descending logit, and by id where logits are equal.  Before `top_k`
            it is None: the ids are 0..V-1, and a logit of -inf excludes its token.
    """

    logits: Logits
    ids: Ids | None = None

    def best_first(self) -> Ids:
        """Return the ids by descending logit.  The candidates must be sorted."""
        assert self.ids is not None, "the candidates are not sorted"
        return self.ids

    def probabilities(self) -> F64:
        """Return the probabilities ``[C]``.  The candidates must be sorted."""
        weights = np.exp(self.logits - self.logits[0])
        return np.asarray(weights / weights.sum(), np.float64)

    def first(self, count: int) -> "Candidates":
        """Return the first *count* candidates, at least one.  The candidates must be sorted."""
        count = max(1, count)
        return Candidates(self.logits[:count], self.best_first()[:count])


@dataclass(frozen=True, slots=True)
class Text:
    """The input of samplers besides the candidates.

    Attributes:
        history: The tokens of the sequence so far.
        chance: A random number of 0 to 1 for samplers that apply with a probability.
        breakers: The token sequences that end a repetition: maps the first token of each sequence
            to its possible tails, the tokens after the first one.
    """

    history: Sequence[int] = ()
    chance: float = 0.0
    breakers: Mapping[int, Tails] = field(default_factory=dict)

    def last(self, count: int, vocabulary: int) -> Ids:
        """Return the last *count* tokens; -1 returns all tokens.

        Raises:
            LayoutError: A token is not in 0..vocabulary-1.
        """
        recent = self.history if count < 0 else self.history[-count:] if count else ()
        ids = np.fromiter(recent, np.int64, len(recent))
        check_ids("the history", ids, vocabulary)
        return ids


# Measured on every device: too large keys or values are the usual cause in models that are sound.
OVERFLOW = (
    "open the model with kv_type='f32' (-ctk f32), as its keys or values may exceed the range of "
    "float16; if it is open so already, run with --verify always, which names a wrong matrix "
    "product; if none is wrong, the weights are damaged: download the file again"
)


def best_of(logits: Logits) -> int:
    """Return the token with the largest logit; of several such tokens, the first.

    Raises:
        NumericsError: A logit is NaN or +inf, or all tokens are excluded.
    """
    best = int(logits.argmax())  # argmax returns the index of a NaN if there is one
    if not math.isfinite(logits[best]):
        raise NumericsError(
            f"the largest logit, of token {best}, is {logits[best]}",
            remedy=OVERFLOW,
        )
    return best


def check_ids(what: str, ids: Ids, count: int) -> None:
    """Check that all *ids* are in 0..count-1.

    Raises:
        LayoutError: An id is outside that range.  *what* is the subject of the message.
    """
    if len(ids) and not 0 <= ids.min() <= ids.max() < count:
        raise LayoutError(
            f"{what} has ids from {ids.min()} to {ids.max()}, but there are {count} logits",
            remedy="pass ids of this model's vocabulary, and logits of the whole vocabulary",
        )
