"""The forward pass of a model: its graph in segments."""

from collections.abc import Sequence

import numpy as np

from npurt.device import F32
from npurt.graph import ops
from npurt.graph.rows import Rows
from npurt.llm.arch.model_builder import ModelGraph
from npurt.llm.state.hidden_states import HiddenStates
from npurt.llm.state.state import State
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
        state: State,
        rows: int,
        hidden_states: HiddenStates | None,
    ) -> None:
        self.rows = rows
        self._executor, self._state = executor, state
        self._residual = residual(model)
        self._captures = hidden_states.captures() if hidden_states else {}
        self._stream: F32 = np.empty((0, 0), np.float32)

    def run(self, ids: Sequence[int], position: int, head: int, out: F32) -> None:
        """Run *ids* from *position* on; write the logits of rows from *head* on to *out*."""
        logits = out[: len(ids) - head]
        made = self._run(ids, position, logits)
        while made is None:  # a device failed; another has its segment now
            self._state.lost()
            made = self._run(ids, position, logits) if self._again(position) else None
        self._stream = made[self._residual]
        for name, capture in self._captures.items():
            capture(made[name], len(ids))
        if made["logits"] is not logits:
            logits[:] = made["logits"]

    def _run(self, ids: Sequence[int], position: int, logits: F32) -> dict[str, F32] | None:
        rows = Rows.of(len(ids), position, wanted=len(logits))
        tokens = np.asarray(ids, np.int32)
        return self._executor.run({"tokens": tokens}, rows, {"logits": logits})

    def _again(self, length: int) -> bool:
        """Evaluate the first *length* tokens again; False when a device failed over that."""
        for start in range(0, length, self.rows):
            part = self._state.tokens[start : min(start + self.rows, length)]
            if self._run(part, start, self._stream[:0]) is None:
                return False
        return True

    def stream(self, row: int) -> F32:
        """Return the residual stream ``[1, D]`` of *row* of the last run."""
        return self._stream[row : row + 1]
