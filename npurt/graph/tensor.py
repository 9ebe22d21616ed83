"""Symbolic tensors: a name, a shape, an element type and a role; no array and no address."""

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import NamedTuple


class Kind(Enum):
    """The role of a tensor in a graph."""

    INPUT = "input"  # given to each run
    ACTIVATION = "activation"  # written by one op, read by later ones
    OUTPUT = "output"  # an activation that the caller reads
    WEIGHT = "weight"  # from the model file
    TABLE = "table"  # computed when the model is loaded, such as rotary frequencies
    STATE = "state"  # kept from run to run, for each sequence


class Dim(NamedTuple):
    """One axis: a letter for people, and its size, or None when only a run knows it."""

    letter: str
    size: int | None

    def __str__(self) -> str:
        return self.letter if self.size is None else f"{self.letter}={self.size}"


ROWS = Dim("T", None)  # tokens of a run
SELECTED = Dim("L", None)  # rows of a run whose logits are wanted
POSITIONS = Dim("P", None)  # tokens of a sequence so far


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value in a graph.  Two tensors are the same value when they are equal."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str = "f32"  # f32, f16, i32, or the name of a GGUF type
    kind: Kind = Kind.ACTIVATION

    @property
    def columns(self) -> int:
        """Size of the last axis, which a graph always knows."""
        size = self.shape[-1].size
        assert size is not None, f"{self.name} ends in an axis of unknown size"
        return size

    @property
    def row_elements(self) -> int:
        """Elements of one row: the product of all sizes that are known."""
        return prod(dim.size for dim in self.shape if dim.size is not None)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(map(str, self.shape))}]"


def sizes(tensor: Tensor) -> tuple[int | str, ...]:
    """Return the shape with a letter where the size is not known, for comparison."""
    return tuple(dim.letter if dim.size is None else dim.size for dim in tensor.shape)
