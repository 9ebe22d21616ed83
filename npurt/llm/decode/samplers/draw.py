"""Random numbers as a function of the seed and the position of a token in its sequence.

So a sequence that is preempted or saved draws the same numbers after it resumes.  Philox4x64-10
maps a counter, here the position, and a key, here the seed, to four words of 64 bits.
Source: Salmon and others, "Parallel random numbers: as easy as 1, 2, 3" (SC11).
"""

import numpy as np
import numpy.typing as npt

COUNTERS = 1 << 256


class Draws:
    """The random numbers of one sequence.

    Args:
        seed: 0 to 2**128 - 1.
    """

    def __init__(self, seed: int) -> None:
        self._key = seed
        self._next: int | None = None  # the position whose words the generator returns next
        self._philox: np.random.Philox  # created by the first draw: greedy decoding draws nothing

    def words(self, position: int) -> npt.NDArray[np.uint64]:
        """Return the four words of *position*."""
        if position != self._next:  # numpy adds 1 to the counter before it computes words
            before = (position - 1) % COUNTERS
            self._philox = np.random.Philox(key=self._key, counter=before)
        self._next = position + 1
        return self._philox.random_raw(4)

    def __call__(self, position: int) -> tuple[float, float]:
        """Return two independent random numbers in [0, 1), with 53 random bits each."""
        draw, chance = self.words(position)[:2].tolist()
        return (draw >> 11) * 2.0**-53, (chance >> 11) * 2.0**-53
