"""The interface of drafters, which propose draft tokens one after another."""

import abc
from collections.abc import Iterator, Sequence

import numpy as np

from npurt.device.device import F32

# A token, and the probability that it is accepted if the draft tokens before it are accepted.
DraftToken = tuple[int, float]


class Drafter(abc.ABC):
    """Proposes the next tokens of a sequence.  A rejected draft token costs only time."""

    name: str
    at_once = False  # whether several draft tokens cost no more than one
    share = 0.0  # bytes read for a draft token, as a fraction of the model's bytes for a token

    def behind(self, history: Sequence[int]) -> int:
        """Return how many tokens of *history* `prepare` must evaluate; 0 if that is quick."""
        del history
        return 0

    def prepare(self, history: Sequence[int], maximum: int) -> None:  # noqa: B027  optional
        """Evaluate about *maximum* pending tokens of *history*, but not its last token."""

    @abc.abstractmethod
    def draft(self, history: Sequence[int], maximum: int) -> Iterator[DraftToken]:
        """Yield up to *maximum* draft tokens after *history*, or none.

        The drafter computes a token when the caller asks for it.  A drafter that does not know the
        probability of a token yields 1.
        """

    def forget(self) -> None:  # noqa: B027  most drafters have no state
        """Remove the tokens that were evaluated."""

    def release(self) -> None:  # noqa: B027  most drafters have no memory to release
        """Release the memory that this drafter uses for its sequence."""


def likeliest(logits: F32) -> DraftToken:
    """Return the most probable token and its probability; 0 unless all logits are finite."""
    token = int(logits.argmax())
    with np.errstate(over="ignore", invalid="ignore"):  # the logits of a draft may overflow
        total = float(np.exp(logits - logits[token]).sum())
    return token, 1 / total if total >= 1 else 0.0
