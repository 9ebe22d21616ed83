"""Write the graph of a model file: weights are declared where they are used, and checked there."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from npurt.errors import ModelFormatError
from npurt.graph.builder import Builder
from npurt.graph.graph import Graph
from npurt.graph.ops import Attention, Precision
from npurt.graph.tensor import Dim, Kind, Tensor
from npurt.llm.file.metadata import CONVERT_AGAIN
from npurt.quant.tensor import QTensor
from npurt.quant.types import FLOATS


class FileTensor(Protocol):
    """What a builder asks of a tensor in a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in numpy order."""

    @property
    def format(self) -> "Named":
        """Element type."""


class Named(Protocol):
    """Something with a name, such as a `npurt.quant.types.Format`."""

    @property
    def name(self) -> str:
        """The name."""


@dataclass(frozen=True, slots=True, eq=False)
class RowsOf:
    """A weight that is a part of a tensor of the file: some of its rows, or all."""

    tensor: str
    rows: npt.NDArray[np.intp] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModelGraph:
    """A graph, and where its weights and tables come from.

    Attributes:
        graph: The forward pass: ``tokens`` in, ``logits`` out.
        parts: Weights that have no tensor of their own name.
        tables: Vectors that are computed from the configuration.
        extra: Weights that are not in the file, by name.
    """

    graph: Graph
    parts: Mapping[str, RowsOf]
    tables: Mapping[str, npt.NDArray[np.float64]]
    extra: Mapping[str, QTensor] = field(default_factory=dict)

    @property
    def windows(self) -> bool:
        """True when a layer sees the last positions only."""
        return any(isinstance(op, Attention) and op.window for op in self.graph.ops)


class ModelBuilder(Builder):
    """A `Builder` that knows the tensors of a file.

    Args:
        name: Of the architecture.
        tensors: The tensors of the file by name.
    """

    def __init__(self, name: str, tensors: Mapping[str, FileTensor]) -> None:
        super().__init__(name)
        self._tensors = tensors
        self._used: set[str] = set()
        self._missing: list[str] = []
        self._misfits: list[ModelFormatError] = []
        self._parts: dict[str, RowsOf] = {}
        self._tables: dict[str, npt.NDArray[np.float64]] = {}

    def has(self, name: str) -> bool:
        """Return True when the file has a tensor of this name."""
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor of the file, () when it has none of this name."""
        return self._tensors[name].shape if name in self._tensors else ()

    # --- Weights --------------------------------------------------------------------------------

    def weight(self, name: str, *shape: Dim) -> Tensor:
        """Return a tensor that the file must have; `require_fit` raises when it has not."""
        if name not in self._tensors:
            self._missing.append(name)
            return self.constant(name, *shape)
        self._used.add(name)
        info = self._tensors[name]
        wanted = tuple(dim.size for dim in shape)
        if info.shape != wanted and not (wanted[0] == 1 and info.shape == wanted[1:]):
            self._misfits.append(
                ModelFormatError(
                    f"{name} has shape {info.shape}, the configuration says {wanted}",
                    remedy=CONVERT_AGAIN,
                )
            )
        return self.constant(name, *shape, dtype=info.format.name)

    def vector(self, name: str, *shape: Dim) -> Tensor:
        """Return a tensor that the file must have, of floats: as `weight`."""
        tensor = self.weight(name, *shape)
        if tensor.dtype not in FLOATS:
            self._misfits.append(
                ModelFormatError(
                    f"{name} is {tensor.dtype}; vectors must be one of {', '.join(FLOATS)}",
                    remedy="convert the model to GGUF again with a current converter",
                )
            )
        return tensor

    def bias(self, name: str, *shape: Dim) -> Tensor | None:
        """Return a tensor that the file may have, of floats; None when it has not."""
        return self.vector(name, *shape) if self.has(name) else None

    def part(self, name: str, of: Tensor, rows: npt.NDArray[np.intp] | None = None) -> Tensor:
        """Return *rows* of a weight, or all of it, as a weight of its own."""
        self._parts[name] = RowsOf(of.name, rows)
        count = of.shape[0] if rows is None else Dim("N", len(rows))
        return Tensor(name, (count, *of.shape[1:]), of.dtype, Kind.WEIGHT)

    def values(self, name: str, values: npt.NDArray[np.float64]) -> Tensor:
        """Return a table of these *values*."""
        self._tables[name] = values
        return self.table(name, len(values))

    # --- Ops on the file's weights --------------------------------------------------------------

    def linear(
        self,
        name: str,
        x: Tensor,
        columns: Dim,
        role: str = "",
        precision: Precision = Precision.ROW8,
    ) -> Tensor:
        """Multiply by ``NAME.weight`` and add ``NAME.bias`` if the file has one."""
        weight = self.weight(f"{name}.weight", columns, x.shape[-1])
        bias = self.bias(f"{name}.bias", columns)
        return self.matmul(name, x, weight, bias, role, precision)

    def norm(self, name: str, x: Tensor, eps: float, heads: int = 1) -> Tensor:
        """RMSNorm by ``NAME.weight``, which has one element for each column of a group."""
        width = Dim(x.shape[-1].letter if heads == 1 else "W", x.columns // heads)
        return self.rms_norm(name, x, self.vector(f"{name}.weight", width), eps, heads=heads)

    def require_fit(self) -> None:
        """Make sure that the file has all weights that were asked for, in these shapes.

        Raises:
            ModelFormatError: It lacks some, or they have other shapes or types.
        """
        if self._missing:
            raise ModelFormatError(
                f"the file lacks {_some(self._missing)}",
                remedy="check that the file is complete and its architecture is what it says",
            )
        if self._misfits:
            raise self._misfits[0]

    def finish(self, ignored: Iterable[str] = ()) -> ModelGraph:
        """Return the graph with its sources.

        Args:
            ignored: Prefixes of names of tensors that may be in the file and are not used.

        Raises:
            ModelFormatError: See `require_fit`; or the file has tensors that nothing uses.
        """
        self.require_fit()
        ignored = tuple(ignored)
        unknown = [n for n in self._tensors if n not in self._used and not n.startswith(ignored)]
        if unknown:
            raise ModelFormatError(
                f"the file has {_some(unknown)}, which {self.name} does not use",
                remedy="use a file of a plain model; without these tensors the text would be wrong",
            )
        return ModelGraph(self.build(), self._parts, self._tables)


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
