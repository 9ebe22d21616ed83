"""Compute the largest logits of an NPU again on the host, in float32.

An NPU rounds activations and sometimes weights, which may swap two close logits.  So the host
computes the `SIZE` largest logits of each row again in float32, from the file's weights and biases.
The token with the largest logit is then correct if it is among these candidates.  The report has
the total probability of all other tokens.
"""

import numpy as np

from npurt.device.device import F32
from npurt.quant.tensor import QTensor

SIZE = 64  # candidates a row; the correct token was always in the first 8 (docs/decisions/007)


class Shortlist:
    """Computes the largest logits of an output matrix again.

    Args:
        tensor: The output matrix ``[V, D]``, as in the file.
        bias: The bias ``[V]``, or None.
    """

    def __init__(self, tensor: QTensor, bias: F32 | None = None) -> None:
        self._tensor = tensor
        self._bias = bias
        self.rows = 0
        self.outside = 0.0  # probability of tokens outside the candidates, summed over rows
        self.worst = 0.0  # largest probability of tokens outside the candidates, of one row

    @np.errstate(invalid="ignore", over="ignore")
    def rescore(self, x: F32, logits: F32) -> None:
        """Replace the largest of *logits* ``[M, V]`` by exact values for the inputs x ``[M, D]``.

        The caller reports rows with NaN or infinity.
        """
        count = min(SIZE, logits.shape[1])
        for row, approximate in zip(x, logits, strict=True):
            best = np.argpartition(approximate, -count)[-count:]
            exact = self._tensor[best].dequantize() @ row
            if self._bias is not None:
                exact += self._bias[best]
            approximate[best] = exact
            self._weigh(approximate, best)

    def _weigh(self, logits: F32, best: np.ndarray[tuple[int], np.dtype[np.intp]]) -> None:
        weights = np.exp(logits - logits.max())
        outside = max(0.0, 1 - float(weights[best].sum() / weights.sum()))
        self.rows += 1
        self.outside += outside
        self.worst = max(self.worst, outside)

    def note(self, device: str) -> str:
        """Return the report's sentence about the shortlist."""
        mean = self.outside / self.rows if self.rows else 0.0
        return (
            f"logits: approximate on {device}, the best {SIZE} of each row exact on the host; "
            f"probability outside them {mean:.1e} on average, {self.worst:.1e} at most"
        )
