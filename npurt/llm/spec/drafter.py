"""What guesses tokens, whatever it is."""

import abc
from collections.abc import Sequence


class Drafter(abc.ABC):
    """Guesses how a text goes on.  A wrong guess costs time and nothing else."""

    name: str
    at_once = False  # several tokens cost no more than one

    def prepare(self, history: Sequence[int]) -> None:  # noqa: B027  most need not
        """Get ready to guess after *history*, while the prompt is evaluated."""

    @abc.abstractmethod
    def propose(self, history: Sequence[int], most: int) -> list[int]:
        """Return up to *most* tokens that may follow *history*; none is a good answer too."""

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Release what it holds.  A second call does nothing."""
