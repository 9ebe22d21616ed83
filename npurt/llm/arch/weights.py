"""Read the weights of a graph from a GGUF file, and check their values for NaN and infinity."""

from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import ModelFormatError
from npurt.graph.ops import Embedding, ExpertMatMul, MatMul
from npurt.llm.arch.model_builder import ModelGraph, RowsOf
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.header import DAMAGED
from npurt.quant.tensor import QTensor


class FileWeights:
    """The weights and tables of a graph as `npurt.device.segment.Weights`."""

    def __init__(self, file: GGUF, model: ModelGraph) -> None:
        self._file, self._model = file, model
        # The weights of these ops are matrices; a file may have a matrix of one row as a vector.
        readers = (MatMul, ExpertMatMul, Embedding)
        self._matrices = {op.weight.name for op in model.graph.ops if isinstance(op, readers)}

    def source(self, name: str) -> RowsOf:
        """Return the file's tensor that contains the weight *name*, and the weight's rows in it."""
        return self._model.parts.get(name) or RowsOf(name)

    def quantised(self, name: str) -> QTensor:
        """Return a weight in the file's type: ``[N, K]``, or ``[E, N, K]`` for experts."""
        if name in self._model.extra:
            return self._model.extra[name]
        source = self.source(name)
        tensor = self._file[source.tensor]
        if tensor.ndim == 1 and name in self._matrices:
            tensor = QTensor(tensor.blocks[None], tensor.format)
        return tensor if source.rows is None else tensor[source.rows]

    def values(self, name: str) -> npt.NDArray[Any]:
        """Return a weight or table as floats.

        Raises:
            ModelFormatError: The weight holds NaN or infinity.
        """
        if name in self._model.tables:
            return self._model.tables[name]
        values = self.quantised(name).dequantize()
        if not np.isfinite(values).all():
            raise ModelFormatError(f"{name} holds NaN or infinity", remedy=DAMAGED)
        return values

    def release(self, name: str) -> None:
        """Release the mapped pages of a weight; the kernel reads them again on the next access."""
        if name not in self._model.extra:
            self._file.release(self.source(name).tensor)
