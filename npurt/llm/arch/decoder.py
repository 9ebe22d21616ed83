"""The forward pass of a model: its graph in segments."""

from collections.abc import Sequence

import numpy as np

from npurt.device import F32
from npurt.graph import ops
from npurt.graph.rows import Rows
from npurt.llm.arch.model_builder import ModelGraph
from npurt.llm.state.hidden_states import HiddenStates
from npurt.runtime.execute.executor import Executor


def residual(model: ModelGraph) -> str:
    """Return the name of the residual stream of all rows after the last layer."""
    select = next(op for op in model.graph.ops if isinstance(op, ops.SelectRows))
    return select.x.name


def output(model: ModelGraph) -> ops.MatMul:
    """Return the product that makes the logits."""
    products = (op for op in model.graph.ops if isinstance(op, ops.MatMul))
    return next(op for op in products if op.role == "output")


class Decoder:
    """A model's graph in an executor.

    Attributes:
        rows: The most rows of a run.
    """

    def __init__(
        self,
        model: ModelGraph,
        executor: Executor,
        rows: int,
        hidden_states: HiddenStates | None,
    ) -> None:
        self.rows = rows
        self._executor = executor
        self._residual = residual(model)
        self._captures = hidden_states.captures() if hidden_states else {}
        self._stream: F32 = np.empty((0, 0), np.float32)

    def run(self, ids: Sequence[int], position: int, head: int, out: F32) -> bool:
        """Run *ids* from *position* on; write the logits of rows from *head* on to *out*.

        Returns:
            False when a device failed and its states are lost.
        """
        logits = out[: len(ids) - head]
        rows = Rows.of(len(ids), position, wanted=len(logits))
        tokens = np.asarray(ids, np.int32)
        made = self._executor.run({"tokens": tokens}, rows, {"logits": logits})
        if made is None:
            return False
        self._stream = made[self._residual]
        for name, capture in self._captures.items():
            capture(made[name], len(ids))
        if made["logits"] is not logits:
            logits[:] = made["logits"]
        return True

    def stream(self, row: int) -> F32:
        """Return the residual stream ``[1, D]`` of *row* of the last run."""
        return self._stream[row : row + 1]
