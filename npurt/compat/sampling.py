"""A sampler with functions of the caller: what the libraries in this package offer."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError
from npurt.llm.decode.generate import NO_TOKEN
from npurt.llm.decode.sampler import Sampler, Sampling

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intc]
Processor = Callable[[Ids, F32], F32]
Criterion = Callable[[Ids, F32], bool]


class ProcessedSampler(Sampler):
    """A sampler whose logits are changed by functions first.

    Attributes:
        last: The token that it chose last.
    """

    def __init__(
        self,
        sampling: Sampling,
        never: Iterable[int] = (),
        processors: Sequence[Processor] = (),
        criterion: Criterion | None = None,
    ) -> None:
        """Prepare.

        Args:
            sampling: The settings, which apply to the changed logits.
            never: Ids that are never chosen.
            processors: Functions of the ids so far, ``[T]``, and the logits ``[V]``, which they may
                overwrite.  They return logits ``[V]``.
            criterion: A function of the same that says whether the text ends before another token.
        """
        super().__init__(sampling, never)
        self._processors = tuple(processors)
        self._criterion = criterion
        self.last = NO_TOKEN

    def sample(self, logits: F32, history: Sequence[int] = ()) -> int:
        """Return the next token, or `NO_TOKEN` to end the text.

        Raises:
            LayoutError: A processor returned no logits ``[V]``.
            NumericsError: A logit is NaN or +inf, or all tokens are excluded.
        """
        if self._processors or self._criterion is not None:
            ids = np.array(history, np.intc)
            if self._criterion is not None and self._criterion(ids, logits.copy()):
                return NO_TOKEN
            logits = self._processed(ids, logits)
        self.last = super().sample(logits, history)
        return self.last

    def _processed(self, ids: Ids, logits: F32) -> F32:
        changed = logits.copy()
        for processor in self._processors:
            changed = np.asarray(processor(ids, changed), np.float32)
            if changed.shape != logits.shape:
                raise LayoutError(
                    f"a logits processor returned shape {changed.shape}, not {logits.shape}",
                    remedy="return the logits that it got, changed",
                )
        return changed


def biased(biases: dict[int, float]) -> Processor:
    """Return a processor that adds *biases*, by id, to the logits."""

    def add(_: Ids, logits: F32) -> F32:
        for token, bias in biases.items():
            if not 0 <= int(token) < len(logits):
                raise LayoutError(
                    f"the biased token {token} is not one of {len(logits)}",
                    remedy="use ids of the model's tokens",
                )
            logits[int(token)] += bias
        return logits

    return add


def penalised(frequency: float, presence: float, last: int) -> Processor:
    """Return a processor that lowers the logits of the *last* tokens.

    Each loses *frequency* for each time that it is among them, and *presence* once.
    Source: OpenAI, "Frequency and presence penalties": the formula.
    """

    def lower(ids: Ids, logits: F32) -> F32:
        tokens, counts = np.unique(ids[-last:] if last else ids[:0], return_counts=True)
        logits[tokens] -= (counts * frequency + presence).astype(np.float32)
        return logits

    return lower
