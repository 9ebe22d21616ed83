"""The interface of drafts: they propose tokens, one after another."""

import abc
from collections.abc import Iterator, Sequence

import numpy as np

from npurt.device import F32

# A token, and the probability that it is right if the draft tokens before it are right.
DraftToken = tuple[int, float]


class Drafter(abc.ABC):
    """Proposes how a text continues.  A wrong draft token costs time and nothing else."""

    name: str
    at_once = False  # whether several draft tokens cost no more than one
    share = 0.0  # bytes read for a draft token, as a share of those that the model reads for one

    def behind(self, history: Sequence[int]) -> int:
        """Return how many tokens of *history* `prepare` would read; 0 if that takes little time."""
        del history
        return 0

    def prepare(self, history: Sequence[int], most: int) -> None:  # noqa: B027  most read nothing
        """Read tokens of *history* that were not read yet, but not the last; about *most*."""

    @abc.abstractmethod
    def draft(self, history: Sequence[int], most: int) -> Iterator[DraftToken]:
        """Yield up to *most* tokens that may follow *history*, one after another, or none.

        The drafter computes a token when the caller asks for it.  A drafter that does not know the
        probability of a token returns 1.
        """

    def forget(self) -> None:  # noqa: B027  most drafts read nothing
        """Forget the text that was read."""

    def release(self) -> None:  # noqa: B027  most drafts have nothing
        """Release what this text has of the draft's memory, for good."""


def likeliest(logits: F32) -> DraftToken:
    """Return the most likely token by *logits* ``[V]``; probability 0 if they are not finite."""
    token = int(logits.argmax())
    with np.errstate(over="ignore", invalid="ignore"):  # a draft may be broken
        total = float(np.exp(logits - logits[token]).sum())
    return token, 1 / total if total >= 1 else 0.0
