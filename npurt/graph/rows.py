"""The row table: the sequence and the position of each row of a run."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of one run.  Rows of a sequence are in order of position, without a gap.

    Attributes:
        sequences: int ``[T]``, the number of each row's sequence.
        positions: int ``[T]``, from 0.
        wanted: bool ``[T]``, True for rows whose logits are computed.

    Raises:
        LayoutError: An array has a wrong shape or element type.
    """

    sequences: npt.NDArray[np.intp]
    positions: npt.NDArray[np.intp]
    wanted: npt.NDArray[np.bool_]
    _spans: list["Span"] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, array, kinds in (
            ("sequences", self.sequences, "iu"),
            ("positions", self.positions, "iu"),
            ("wanted", self.wanted, "b"),
        ):
            if array.shape != (len(self.positions),) or array.dtype.kind not in kinds:
                raise LayoutError(
                    f"{name} of {len(self.positions)} rows are {array.dtype} {array.shape}",
                    remedy="pass an integer sequence, an integer position and a bool for each row",
                )

    @classmethod
    def of(
        cls, count: int, start: int = 0, *, wanted: int | None = None, sequence: int = 0
    ) -> "Rows":
        """Return *count* rows of a sequence from position *start* on, in read-only arrays.

        Args:
            wanted: The number of last rows whose logits are computed; None computes all.
        """
        index, sequences, flags = _constants(count, sequence, count if wanted is None else wanted)
        positions = index + start
        positions.setflags(write=False)
        made = cls(sequences, positions, flags)
        if count:
            made._spans.append(Span(sequence, index, start, start + count))
        return made

    @classmethod
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        """Return the concatenated rows of *parts*, which must not have sequences in common."""
        if len(parts) == 1:
            return parts[0]
        made = cls(
            np.concatenate([part.sequences for part in parts]),
            np.concatenate([part.positions for part in parts]),
            np.concatenate([part.wanted for part in parts]),
        )
        before = 0
        for part in parts:
            spans = part.by_sequence()
            made._spans.extend(span._replace(rows=span.rows + before) for span in spans)
            before += len(part)
        return made

    def __len__(self) -> int:
        return len(self.positions)

    def by_sequence(self) -> list["Span"]:
        """Return one span per sequence, in order of first appearance.

        Raises:
            LayoutError: Positions of a sequence are out of order or have a gap.
        """
        if not self._spans and len(self.positions):
            self._spans.extend(self._find_spans())
        return self._spans

    def _find_spans(self) -> Iterator["Span"]:
        for sequence in dict.fromkeys(self.sequences.tolist()):
            index = np.flatnonzero(self.sequences == sequence)
            positions = self.positions[index]
            if (np.diff(positions) != 1).any():
                raise LayoutError(
                    f"rows of sequence {sequence} are at positions {positions.tolist()[:8]}",
                    remedy="pass the rows of a sequence in order, one for each position",
                )
            yield Span(sequence, index, int(positions[0]), int(positions[-1]) + 1)


@functools.lru_cache(64)  # decoding needs the same arrays for each token
def _constants(
    count: int, sequence: int, wanted: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return read-only arrays: row numbers, sequences and `wanted` flags of the rows."""
    index = np.arange(count)
    made = index, np.full(count, sequence, np.intp), index >= count - wanted
    for array in made:
        array.setflags(write=False)
    return made


class Span(NamedTuple):
    """The rows of one sequence in a run.

    Attributes:
        sequence: The number of the sequence.
        rows: The indices of its rows in the run.
        first: The position of the first row.
        end: The position after the last row.
    """

    sequence: int
    rows: npt.NDArray[np.intp]
    first: int
    end: int
