"""Build the graph of a model file, and check the shapes of the file's weights."""

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
    """The properties of a file's tensor that a builder reads."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in numpy order."""

    @property
    def format(self) -> "Named":
        """Element type."""


class Named(Protocol):
    """An object with a name, such as a `npurt.quant.types.Format`."""

    @property
    def name(self) -> str:
        """The name."""


@dataclass(frozen=True, slots=True, eq=False)
class RowsOf:
    """A weight that consists of some rows of a tensor of the file, or of all rows if None."""

    tensor: str
    rows: npt.NDArray[np.intp] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModelGraph:
    """A graph and the sources of its weights and tables.

    Attributes:
        graph: The forward pass, from ``tokens`` to ``logits``.
        parts: Name of a weight -> the rows that it uses of a tensor with another name.
        tables: Vectors computed from the configuration, by name.
        extra: Weights that are not in the file, by name.
    """

    graph: Graph
    parts: Mapping[str, RowsOf]
    tables: Mapping[str, npt.NDArray[np.float64]]
    extra: Mapping[str, QTensor] = field(default_factory=dict)

    @property
    def windows(self) -> bool:
        """Whether a layer attends to a window of the last positions."""
        return any(isinstance(op, Attention) and op.window for op in self.graph.ops)


class ModelBuilder(Builder):
    """A `Builder` that declares weights from the tensors of a file.

    Args:
        name: The name of the architecture.
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
        """Return whether the file has a tensor *name*."""
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the file's tensor *name*, or () if the file has no such tensor."""
        return self._tensors[name].shape if name in self._tensors else ()

    # --- Weights --------------------------------------------------------------------------------

    def weight(self, name: str, *shape: Dim) -> Tensor:
        """Declare a weight that the file must have; `require_fit` raises if it is missing."""
        if name not in self._tensors:
            self._missing.append(name)
            return self.constant(name, *shape)
        self._used.add(name)
        info = self._tensors[name]
        wanted = tuple(dim.size for dim in shape)
        if info.shape != wanted and not (wanted[0] == 1 and info.shape == wanted[1:]):
            self._misfits.append(
                ModelFormatError(
                    f"{name} has shape {info.shape}, but the configuration says {wanted}",
                    remedy=CONVERT_AGAIN,
                )
            )
        return self.constant(name, *shape, dtype=info.format.name)

    def vector(self, name: str, *shape: Dim) -> Tensor:
        """Declare a weight of a float type; otherwise as `weight`."""
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
        """Declare an optional weight of a float type; return None if the file does not have it."""
        return self.vector(name, *shape) if self.has(name) else None

    def part(self, name: str, of: Tensor, rows: npt.NDArray[np.intp] | None = None) -> Tensor:
        """Declare a weight that consists of *rows* of the weight *of*; None means all rows."""
        self._parts[name] = RowsOf(of.name, rows)
        count = of.shape[0] if rows is None else Dim("N", len(rows))
        return Tensor(name, (count, *of.shape[1:]), of.dtype, Kind.WEIGHT)

    def values(self, name: str, values: npt.NDArray[np.float64]) -> Tensor:
        """Declare a table with these *values*."""
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
        """Multiply *x* by ``NAME.weight`` and add ``NAME.bias`` if the file has it."""
        weight = self.weight(f"{name}.weight", columns, x.shape[-1])
        bias = self.bias(f"{name}.bias", columns)
        return self.matmul(name, x, weight, bias, role, precision)

    def norm(self, name: str, x: Tensor, eps: float, heads: int = 1) -> Tensor:
        """Apply RMSNorm with ``NAME.weight`` to each of *heads* groups of columns.

        The weight has one element for each column of a group.
        """
        width = Dim(x.shape[-1].letter if heads == 1 else "W", x.columns // heads)
        return self.rms_norm(name, x, self.vector(f"{name}.weight", width), eps, heads=heads)

    def require_fit(self) -> None:
        """Raise an error unless the file has all declared weights in the declared shapes.

        Raises:
            ModelFormatError: A weight is missing, or has another shape or type.
        """
        if self._missing:
            raise ModelFormatError(
                f"the file lacks {_some(self._missing)}",
                remedy=CONVERT_AGAIN,
            )
        if self._misfits:
            raise self._misfits[0]

    def finish(self, ignored: Iterable[str] = ()) -> ModelGraph:
        """Return the graph with the sources of its weights.

        Args:
            ignored: Prefixes of the names of tensors that the file may have without using them.

        Raises:
            ModelFormatError: As `require_fit`, or the file has tensors that the graph does not use.
        """
        self.require_fit()
        ignored = tuple(ignored)
        unknown = [n for n in self._tensors if n not in self._used and not n.startswith(ignored)]
        if unknown:
            raise ModelFormatError(
                f"the file has {_some(unknown)}, which {self.name} does not use",
                remedy="use a file of a plain model; without these tensors the output would be "
                "wrong",
            )
        return ModelGraph(self.build(), self._parts, self._tables)


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
