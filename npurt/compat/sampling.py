"""A sampler that stores the last sampled token, for the interfaces in this package."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from npurt.llm.decode.sampler import NO_TOKEN, TokenSampler
from npurt.llm.decode.sampler import Criterion as Criterion
from npurt.llm.decode.sampler import Processor as Processor

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intc]


class LastSampler(TokenSampler):
    """A sampler with an attribute *last*: the last sampled token.

    *last* is `NO_TOKEN` before the first token and after the end of the completion.
    """

    last = NO_TOKEN

    def sample(self, logits: F32, history: Sequence[int] = ()) -> int:
        """Return the next token, or `NO_TOKEN` to end the completion; see `TokenSampler.sample`."""
        self.last = super().sample(logits, history)
        return self.last
