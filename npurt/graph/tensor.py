"""Symbolic tensors: a name, a shape, an element type and a role, without values."""

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import NamedTuple


class Kind(Enum):
    """The role of a tensor in a graph."""

    INPUT = "input"  # passed to each run by the caller
    ACTIVATION = "activation"  # written by one op, read by later ones
    OUTPUT = "output"  # an activation that the caller reads
    WEIGHT = "weight"  # read from the model file
    TABLE = "table"  # computed when the model is loaded, such as rotary frequencies
    STATE = "state"  # stored from run to run, for each sequence


class Dim(NamedTuple):
    """One axis: a letter for display, and its size, or None if it depends on the run."""

    letter: str
    size: int | None

    def __str__(self) -> str:
        return self.letter if self.size is None else f"{self.letter}={self.size}"


ROWS = Dim("T", None)  # tokens of a run
SELECTED = Dim("L", None)  # rows of a run whose logits are computed
POSITIONS = Dim("P", None)  # tokens of a sequence, including those of the run


@dataclass(frozen=True, slots=True)
class Tensor:
    """A symbolic tensor of a graph.  Equal tensors stand for the same value."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str = "f32"  # f32, f16, i32, or the name of a GGUF type
    kind: Kind = Kind.ACTIVATION

    @property
    def columns(self) -> int:
        """The size of the last axis, which never depends on the run."""
        size = self.shape[-1].size
        assert size is not None, f"{self.name} ends in an axis of unknown size"
        return size

    @property
    def row_elements(self) -> int:
        """The number of elements of one row: the product of all known sizes."""
        return prod(dim.size for dim in self.shape if dim.size is not None)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(map(str, self.shape))}]"


def sizes(tensor: Tensor) -> tuple[int | str, ...]:
    """Return the shape, with letters in place of unknown sizes."""
    return tuple(dim.letter if dim.size is None else dim.size for dim in tensor.shape)
