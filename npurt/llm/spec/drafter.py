"""What guesses tokens, whatever it is."""

import abc
from collections.abc import Iterator, Sequence

import numpy as np

from npurt.device import F32

Guess = tuple[int, float]  # a token, and how likely it is right where those before it are


class Drafter(abc.ABC):
    """Guesses how a text goes on.  A wrong guess costs time and nothing else."""

    name: str
    at_once = False  # several tokens cost no more than one
    share = 0.0  # of the bytes that the model reads for a token, those read for a guess

    def behind(self, history: Sequence[int]) -> int:
        """Return how many tokens of *history* `prepare` would read, which takes a while."""
        del history
        return 0

    def prepare(self, history: Sequence[int]) -> None:  # noqa: B027  most need not
        """Read all of *history* but its last token."""

    @abc.abstractmethod
    def guesses(self, history: Sequence[int], most: int) -> Iterator[Guess]:
        """Yield up to *most* tokens that may follow *history*, one after another.

        The work for one is done when it is asked for.  One that cannot tell how likely it is says
        1.  None at all is a good answer too.
        """

    def forget(self) -> None:  # noqa: B027  most read nothing
        """Forget what was read."""


def likeliest(logits: F32) -> Guess:
    """Return the most likely token by *logits* ``[V]``; chance 0 where they are not finite."""
    token = int(logits.argmax())
    with np.errstate(over="ignore", invalid="ignore"):  # a draft may be broken
        total = float(np.exp(logits - logits[token]).sum())
    return token, 1 / total if total >= 1 else 0.0
