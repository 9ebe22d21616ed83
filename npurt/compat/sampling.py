"""A sampler that says which token it chose last: what the libraries in this package need."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from npurt.llm.decode.sampler import NO_TOKEN, Sampler
from npurt.llm.decode.sampler import Criterion as Criterion
from npurt.llm.decode.sampler import Processor as Processor

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intc]


class LastSampler(Sampler):
    """A sampler with the token that it chose last, `NO_TOKEN` at first and at an end."""

    last = NO_TOKEN

    def sample(self, logits: F32, history: Sequence[int] = ()) -> int:
        """Return the next token, or `NO_TOKEN` to end the text; see `Sampler.sample`."""
        self.last = super().sample(logits, history)
        return self.last
