"""From a file's tensors to weights on devices: packed, checked for NaN, pages let go."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu.device import CpuDevice
from npurt.device import F32, Device
from npurt.errors import ModelFormatError
from npurt.graph.ops import ExpertMatMul, MatMul, Precision
from npurt.graph.tensor import Kind
from npurt.llm.arch.architecture import EMBEDDING
from npurt.llm.arch.model_builder import ModelGraph, RowsOf
from npurt.llm.file.gguf import DAMAGED, GGUF
from npurt.quant.tensor import QTensor
from npurt.runtime.execute.placement import Placed, Wanted, place


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A weight of products, and what the graph asks of its device."""

    name: str  # of the graph's tensor
    source: RowsOf
    precision: Precision
    call: str  # products that a device may do in one call have the same
    head: bool  # whether it is the output matrix, which no row of a prompt but the last needs

    def read(self, file: GGUF) -> QTensor:
        """Return its rows: ``[N, K]``, or ``[E, N, K]`` for a stack of experts."""
        tensor = file[self.source.tensor]
        if tensor.ndim == 1:
            tensor = QTensor(tensor.blocks[None], tensor.format)
        return tensor if self.source.rows is None else tensor[self.source.rows]


def matrices(model: ModelGraph) -> Iterator[Matrix]:
    """Yield the weights of products in the order of the graph."""
    for op in model.graph.ops:
        if isinstance(op, MatMul | ExpertMatMul):
            name = op.weight.name
            source = model.parts.get(name) or RowsOf(name)
            call = f"{op.x.name}.{op.role}"
            yield Matrix(name, source, op.precision, call, op.role == "output")


def vectors(file: GGUF, model: ModelGraph) -> dict[str, F32]:
    """Return the weights that are not multiplied by, float32, by name: norms, biases, kernels.

    Raises:
        ModelFormatError: One holds NaN or infinity.
    """
    multiplied = {matrix.name for matrix in matrices(model)}
    found = {}
    for tensor in model.graph.tensors(Kind.WEIGHT):
        name = tensor.name
        if name in multiplied or name == EMBEDDING:
            continue
        values = np.ascontiguousarray(file[name].dequantize())
        if not np.isfinite(values).all():
            raise ModelFormatError(f"{name} holds NaN or infinity", remedy=DAMAGED)
        found[name] = values
    return found


def load(
    file: GGUF,
    model: ModelGraph,
    biases: dict[str, F32],
    device: Device,
    cpu: CpuDevice,
    *,
    rows: int,
    used: float = 1.0,
    strict: bool = False,
    progress: Callable[[int], None] = lambda nbytes: None,
    note: Callable[[str], None] = lambda sentence: None,
) -> dict[str, Placed]:
    """Pack every matrix; return them by name.

    Args:
        biases: Vectors by name: see `vectors`.
        rows: The most that a product has.
        used: The share of its experts that a token uses.
        progress: Called with the bytes of each weight once it is packed.
        note: Called with what to say of where the weights are.

    Raises:
        NotOffloaded: *strict*, and *device* refuses a weight.
    """
    found = list(matrices(model))
    placed: dict[str, Placed] = {}
    for at_home in (True, False):
        part = [m for m in found if (m.precision is Precision.EXACT) is at_home]
        wanted = [_wanted(matrix, matrix.read(file), rows, used) for matrix in part]

        def done(i: int, part: Sequence[Matrix] = part, wanted: list[Wanted] = wanted) -> None:
            file.release(part[i].source.tensor)
            progress(wanted[i].tensor.nbytes)

        there = cpu if at_home else device
        here = place(wanted, there, cpu, strict=strict, done=done, note=note)
        placed |= zip((matrix.name for matrix in part), here, strict=True)
    for op in model.graph.ops:
        if isinstance(op, MatMul | ExpertMatMul) and op.bias is not None:
            placed[op.weight.name].add_bias(biases[op.bias.name])
    return placed


def _wanted(matrix: Matrix, tensor: QTensor, rows: int, used: float) -> Wanted:
    """Say what the weight is for: a layer is one unit, and so is the output matrix."""
    name = matrix.name.removesuffix(".weight")
    share = used if tensor.ndim == 3 else 1.0
    return Wanted(
        name,
        tensor,
        int16=matrix.precision in {Precision.INT16, Precision.BLOCK8},
        unit=name.rpartition(".")[0] or name,
        call=matrix.call,
        rows=1 if matrix.head else rows,
        prompt=0.0 if matrix.head else share,
        reply=share,
    )


class FileWeights:
    """The weights and tables of a graph as `npurt.segment.Weights`."""

    def __init__(self, file: GGUF, model: ModelGraph) -> None:
        self._file, self._model = file, model
        self._sources = {matrix.name: matrix for matrix in matrices(model)}

    def quantised(self, name: str) -> QTensor:
        """Return a weight as the file has it."""
        matrix = self._sources.get(name)
        return matrix.read(self._file) if matrix else self._file[name]

    def values(self, name: str) -> npt.NDArray[Any]:
        """Return a weight or table as floats; ModelFormatError when it holds NaN or infinity."""
        if name in self._model.tables:
            return self._model.tables[name]
        values = self.quantised(name).dequantize()
        if not np.isfinite(values).all():
            raise ModelFormatError(f"{name} holds NaN or infinity", remedy=DAMAGED)
        return values
