"""From a file's tensors to weights on devices: packed, checked for NaN, pages let go."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from npurt.cpu.device import CpuDevice
from npurt.device import F32, Device
from npurt.errors import ModelFormatError
from npurt.graph.ops import ExpertMatMul, MatMul, Precision
from npurt.graph.tensor import Kind
from npurt.llm.arch.architecture import EMBEDDING
from npurt.llm.arch.model_builder import ModelGraph, RowsOf
from npurt.llm.gguf import DAMAGED, GGUF
from npurt.quant.tensor import QTensor
from npurt.runtime.placement import Placed, place


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A weight of products, and what the graph asks of its device."""

    name: str  # of the graph's tensor
    source: RowsOf
    precision: Precision
    call: str  # products that a device may do in one call have the same

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
            yield Matrix(name, source, op.precision, f"{op.x.name}.{op.role}")


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
    strict: bool = False,
    progress: Callable[[int], None] = lambda nbytes: None,
) -> dict[str, Placed]:
    """Pack every matrix; return them by name.

    Args:
        biases: Vectors by name: see `vectors`.
        progress: Called with the bytes of each weight once it is packed.

    Raises:
        NotOffloaded: *strict*, and *device* refuses a weight.
    """
    found = list(matrices(model))
    placed: dict[str, Placed] = {}
    for at_home in (True, False):
        part = [m for m in found if (m.precision is Precision.EXACT) is at_home]
        placed |= _place(file, part, cpu if at_home else device, cpu, strict, progress)
    for op in model.graph.ops:
        if isinstance(op, MatMul | ExpertMatMul) and op.bias is not None:
            placed[op.weight.name].bias = biases[op.bias.name]
    return placed


def _place(
    file: GGUF,
    found: Sequence[Matrix],
    device: Device,
    cpu: CpuDevice,
    strict: bool,
    progress: Callable[[int], None],
) -> dict[str, Placed]:
    tensors = [(matrix.name.removesuffix(".weight"), matrix.read(file)) for matrix in found]

    def done(index: int) -> None:
        file.release(found[index].source.tensor)
        progress(tensors[index][1].nbytes)

    wide = {Precision.INT16, Precision.BLOCK8}
    fine = {m.name.removesuffix(".weight") for m in found if m.precision in wide}
    placed = place(tensors, device, cpu, strict=strict, fine=fine, done=done)
    return {matrix.name: weight for matrix, weight in zip(found, placed, strict=True)}
