"""Shortlist of an NPU's logits: compute the best few of each row again, exactly.

An NPU rounds activations and sometimes weights, which may swap two close logits.  The candidates
with the largest logits are computed again in float32 from the file's rows, biases included.  So the
best token is that of the exact product, if it is among the candidates.  The report has the
probability of all other tokens.
"""

import numpy as np

from npurt.device import F32
from npurt.quant.tensor import QTensor

SIZE = 64  # candidates a row: the exact best was always among the first 8 (docs/decisions/007)


class Shortlist:
    """Computes the best logits of an output matrix again.

    Args:
        tensor: The matrix ``[V, D]``, as in the file.
        bias: ``[V]``, or None.
    """

    def __init__(self, tensor: QTensor, bias: F32 | None = None) -> None:
        self._tensor = tensor
        self._bias = bias
        self.rows = 0
        self.outside = 0.0  # probability outside the candidates: sum over rows
        self.worst = 0.0  # of a row

    @np.errstate(invalid="ignore", over="ignore")
    def rescore(self, x: F32, logits: F32) -> None:
        """Replace the best of *logits* ``[M, V]`` by exact ones for the inputs x ``[M, D]``.

        Rows that are not finite stay as they are; the caller reports them.
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
        """Return a sentence for the report."""
        mean = self.outside / self.rows if self.rows else 0.0
        return (
            f"logits: approximate on {device}, the best {SIZE} of each row exact on the host; "
            f"probability outside them {mean:.1e} on average, {self.worst:.1e} at most"
        )
