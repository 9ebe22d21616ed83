"""The rows of a run as kernels see them: `npurt_table` of the header."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npurt.cpu.kernels import abi

I32 = npt.NDArray[np.int32]


class Span(NamedTuple):
    """Consecutive rows of a run: consecutive positions of one sequence.

    Attributes:
        rows: How many.
        position: Of the first.
        slot: Where the sequence has its recurrent states.
        pages: Numbers of the pages of its keys and values, from position 0 on; None: it has none.
    """

    rows: int
    position: int = 0
    slot: int = 0
    pages: I32 | None = None


class RowTable:
    """The rows of one run: spans that follow each other, and the rows whose logits are wanted.

    Args:
        selected: The numbers of those rows, ascending; None: all.

    Attributes:
        rows: How many rows there are.
        struct: The npurt_table.
    """

    def __init__(self, spans: Sequence[Span], selected: I32 | None = None) -> None:
        self.spans = spans
        self.rows = sum([span.rows for span in spans])
        if selected is None:
            selected = np.arange(self.rows, dtype=np.int32)
        self.selected = selected
        ffi = abi.ffi()
        self._spans = ffi.new("npurt_span[]", len(spans))
        self._keep: list[Any] = []  # what they point to
        first = 0
        for struct, span in zip(self._spans, spans, strict=True):
            struct.first, struct.rows = first, span.rows
            struct.position, struct.slot = span.position, span.slot
            if span.pages is not None:
                struct.pages, struct.listed = self._address(span.pages), len(span.pages)
            first += span.rows
        self.struct = ffi.new("npurt_table *")
        self.struct.rows, self.struct.count, self.struct.spans = first, len(spans), self._spans
        self.struct.selects, self.struct.selected = len(selected), self._address(selected)

    @classmethod
    def of(cls, rows: int, position: int = 0, pages: I32 | None = None) -> "RowTable":
        """Return the table of *rows* rows of one sequence, all of them selected."""
        return cls([Span(rows, position, 0, pages)] if rows else [])

    def _address(self, numbers: I32) -> Any:
        memory = abi.ffi().from_buffer("int32_t[]", numbers)
        self._keep.append(memory)
        return memory
