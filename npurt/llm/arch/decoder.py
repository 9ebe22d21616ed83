"""Run the graph of a decoder on chunks of sequences."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from npurt.device.device import F32
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.rows import Rows
from npurt.llm.arch.model_builder import ModelGraph
from npurt.runtime.execute.executor import Executor


def residual(model: ModelGraph) -> str:
    """Return the name of the tensor with the residual stream of all rows after the last layer."""
    select = next(op for op in model.graph.ops if isinstance(op, ops.SelectRows))
    return select.x.name


def output(model: ModelGraph) -> ops.MatMul:
    """Return the product that computes the logits."""
    products = (op for op in model.graph.ops if isinstance(op, ops.MatMul))
    return next(op for op in products if op.role == "output")


def output_norm(model: ModelGraph) -> Graph:
    """Return a graph of the norm before the output matrix; its input is the residual stream."""
    select = next(op for op in model.graph.ops if isinstance(op, ops.SelectRows))
    norm = next(op for op in model.graph.ops if select.out in op.reads)
    given, wanted = frozenset({select.out.name}), frozenset(t.name for t in norm.writes)
    return Graph("output norm", (norm,), given, wanted)


class Chunk(NamedTuple):
    """Tokens of one sequence in a run.

    Attributes:
        position: The position of the first token.
        wanted: The number of tokens at the end of the chunk whose logits are computed.
    """

    sequence: int
    position: int
    ids: Sequence[int]
    wanted: int


class Decoder:
    """A model's graph in an executor.

    Attributes:
        rows: The maximum number of rows in a run.
    """

    def __init__(self, model: ModelGraph, executor: Executor, rows: int) -> None:
        self.rows = rows
        self._executor = executor
        self._residual = residual(model)
        self._stream: F32 = np.empty((0, 0), np.float32)

    def run(self, chunks: Sequence[Chunk], out: F32) -> Mapping[str, Any] | None:
        """Run *chunks* as one batch and write the logits of the wanted tokens to *out*.

        Returns:
            The outputs of the graph by name, or None if a device failed and the states of all
            sequences are lost.
        """
        parts, tokens, wanted = list[Rows](), list[int](), 0
        for sequence, position, ids, count in chunks:
            parts.append(Rows.of(len(ids), position, wanted=count, sequence=sequence))
            tokens += ids
            wanted += count
        rows = parts[0] if len(parts) == 1 else Rows.joined(parts)
        # The executor prepares each new array object, so pass *out* itself whenever possible.
        logits = out if wanted == len(out) else out[:wanted]
        given = {"tokens": np.array(tokens, np.int32)}
        made = self._executor.run(given, rows, {"logits": logits})
        if made is None:
            return None
        self._stream = made[self._residual]
        if made["logits"] is not logits:
            logits[:] = made["logits"]
        return made

    def stream(self, row: int) -> F32:
        """Return the residual stream ``[1, D]`` of *row* of the last run."""
        return self._stream[row : row + 1]

    @property
    def streams(self) -> F32:
        """The residual stream ``[T, D]`` of all rows of the last run."""
        return self._stream
