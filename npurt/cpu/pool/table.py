"""The table of the rows of a run: `npurt_table` in npurt_cpu.h."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npurt.cpu.kernels import abi

I32 = npt.NDArray[np.int32]


class TableSpan(NamedTuple):
    """Consecutive rows of a run, at consecutive positions of one sequence.

    Attributes:
        rows: The number of rows.
        position: The position of the first row.
        slot: The index of the sequence's recurrent states in the arrays of states.
        pages: The page numbers of the sequence's keys and values, from position 0 on; None if the
            sequence has no pages.
    """

    rows: int
    position: int = 0
    slot: int = 0
    pages: I32 | None = None


class RowTable:
    """The rows of one run.

    Args:
        spans: The spans of the sequences, in the order of their rows.
        selected: The numbers of the rows whose logits are computed, ascending; None selects all.

    Attributes:
        rows: The number of rows.
        struct: The npurt_table.
    """

    def __init__(self, spans: Sequence[TableSpan], selected: I32 | None = None) -> None:
        self.spans = spans
        ffi = abi.ffi()
        self._spans = ffi.new("npurt_span[]", len(spans))
        self._keep: list[Any] = []  # the arrays that the structs point to
        first = 0
        for struct, span in zip(self._spans, spans, strict=True):
            struct.first, struct.rows = first, span.rows
            struct.position, struct.slot = span.position, span.slot
            if span.pages is not None:
                pages = ffi.from_buffer("int32_t[]", span.pages)
                struct.pages, struct.listed = pages, len(span.pages)
                self._keep.append(pages)
            first += span.rows
        self.rows = first
        self.selected = np.arange(first, dtype=np.int32) if selected is None else selected
        numbers = ffi.from_buffer("int32_t[]", self.selected)
        self._keep.append(numbers)
        self.struct = ffi.new("npurt_table *")
        self.struct.rows, self.struct.count, self.struct.spans = first, len(spans), self._spans
        self.struct.selects, self.struct.selected = len(self.selected), numbers

    @classmethod
    def of(cls, rows: int, position: int = 0, pages: I32 | None = None) -> "RowTable":
        """Return a table of *rows* rows of one sequence, all rows selected."""
        return cls([TableSpan(rows, position, 0, pages)] if rows else [])
