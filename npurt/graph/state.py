"""The states of sequences and the values of a run in the interpreter."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError
from npurt.graph.graph import Graph
from npurt.graph.ops import Op
from npurt.graph.rows import Rows
from npurt.graph.tensor import SELECTED, Kind, Tensor, sizes

Array = npt.NDArray[Any]


class States:
    """The states of all sequences of a graph, as float arrays by name.

    Args:
        graph: The graph with the state tensors.
        dtype: The element type of all states; None uses *dtypes*, else the dtype of the tensor.
        dtypes: Element types by name of the state, such as ``f16``.
    """

    def __init__(
        self,
        graph: Graph,
        dtype: npt.DTypeLike | None = None,
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        self._tensors = {tensor.name: tensor for tensor in graph.tensors(Kind.STATE)}
        named = {name: tensor.dtype for name, tensor in self._tensors.items()} | dict(dtypes or {})
        self._dtypes = {
            name: np.dtype(dtype or named[name].replace("f", "float")) for name in self._tensors
        }
        self._sequences: dict[int, dict[str, Array]] = {}

    def of(self, sequence: int) -> dict[str, Array]:
        """Return the states of *sequence*.

        A new sequence gets states of zeros; states with an axis of positions have 0 positions.
        """
        if sequence not in self._sequences:
            self._sequences[sequence] = {
                name: np.zeros([size if isinstance(size, int) else 0 for size in sizes(tensor)],
                               self._dtypes[name])
                for name, tensor in self._tensors.items()
            }  # fmt: skip
        return self._sequences[sequence]

    def append(self, sequence: int, state: Tensor, position: int, values: Array) -> Array:
        """Replace the state from *position* on by *values* ``[T, n]``; return the whole state.

        Raises:
            LayoutError: Positions before *position* are missing.
        """
        held = self.of(sequence)
        old = held[state.name]
        if position > len(old):
            raise LayoutError(
                f"sequence {sequence} has {len(old)} positions, not {position}",
                remedy="run the rows of a sequence in order, without a gap",
            )
        new = np.concatenate([old[:position], values.astype(old.dtype)])
        held[state.name] = new
        return new

    def copy(self, sequence: int) -> dict[str, Array]:
        """Return a copy of the states of *sequence*, for `restore`."""
        return {name: array.copy() for name, array in self.of(sequence).items()}

    def restore(self, sequence: int, copied: Mapping[str, Array]) -> None:
        """Set the states of *sequence* to a result of `copy`."""
        self._sequences[sequence] = {name: array.copy() for name, array in copied.items()}

    def forget(self, sequence: int) -> None:
        """Drop the states of *sequence*."""
        self._sequences.pop(sequence, None)


class Run:
    """The values of the tensors in one run, for the functions in `meaning`."""

    def __init__(
        self,
        dtype: npt.DTypeLike,
        values: dict[str, Array],
        load: Callable[[str], Array],
        load_rows: Callable[[str, Array], Array],
        rows: Rows,
        states: States,
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.values = values
        self.rows = rows
        self.states = states
        self._load = load
        self._load_rows = load_rows

    def __getitem__(self, tensor: Tensor) -> Array:
        """Return the value of *tensor*, in the run's element type unless it has integers."""
        if tensor.name in self.values:
            return self.values[tensor.name]
        shape = [dim.size or -1 for dim in tensor.shape]  # a file may store one row as a vector
        return self._load(tensor.name).astype(self.dtype, copy=False).reshape(shape)

    def each_row(self, op: Op) -> Iterator["Run"]:
        """Yield one run per row, with the row's values that *op* reads; load weights once."""
        load, rows = functools.cache(self._load), self.rows
        read = [tensor for tensor in op.reads if tensor.name in self.values]
        end = 0  # number of wanted rows before and including row t
        for t in range(len(rows)):
            own = slice(t, t + 1)
            start, end = end, end + int(rows.wanted[t])
            selected = slice(start, end)
            yield Run(
                self.dtype,
                {x.name: self.values[x.name][selected if x.shape[0] == SELECTED else own]
                 for x in read},
                load,
                self._load_rows,
                Rows(rows.sequences[own], rows.positions[own], rows.wanted[own]),
                self.states,
            )  # fmt: skip

    def rows_of(self, tensor: Tensor, index: Array) -> Array:
        """Return the rows *index* of a weight, without loading all of it."""
        return np.asarray(self._load_rows(tensor.name, index), dtype=self.dtype)


def by_head(rows: Array, heads: int) -> Array:
    """Return keys or values ``[P, G * W]`` as a view ``[G, P, W]``."""
    length, columns = rows.shape
    return rows.reshape(length, heads, columns // heads).transpose(1, 0, 2)


def by_position(array: Array) -> Array:
    """Return a copy of keys or values ``[G, P, W]`` as ``[P, G * W]``."""
    heads, length, width = array.shape
    return np.array(array.transpose(1, 0, 2), order="C").reshape(length, heads * width)
