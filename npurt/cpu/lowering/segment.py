"""Run a part of a graph on the CPU, with the rows of all sequences in one run.

A run reads the weights once, whatever the number of sequences.  Keys and values are in pages, which
are assigned to sequences as they grow; recurrent states are in one slot per sequence.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from npurt.cpu.lowering.constants import Place
from npurt.cpu.lowering.part import MakeSteps, PartProgram
from npurt.cpu.pool.table import RowTable, TableSpan
from npurt.cpu.state.states import SequenceStates
from npurt.device.guard import Guard
from npurt.device.segment import (
    NO_FOREIGN,
    Array,
    Capacity,
    Counter,
    Limits,
    RunForeign,
    Segment,
    Weights,
)
from npurt.device.verify import Sampler
from npurt.errors import OutOfPages
from npurt.graph.graph import Graph
from npurt.graph.ops import Op
from npurt.graph.rows import Rows, Span
from npurt.graph.tensor import Tensor


class CpuSegment(Segment):
    """A part of a graph on the CPU.

    Args:
        place: Packs the weights.
        make_steps: Returns empty steps; a device that runs some ops itself passes a subclass.
        part: The part of the graph.
        weights: The weights of the part.
        limits: The maximum sizes of runs and states.
        foreign: Functions that run the parts on other devices; see `npurt.device.segment.Host`.

    Raises:
        UnsupportedOp: Neither a kernel nor numpy can run an op of the part.
        SettingError: ``limits.kv_bytes`` is too small for one page.
    """

    def __init__(
        self,
        place: Place,
        make_steps: MakeSteps,
        part: Graph,
        weights: Weights,
        limits: Limits,
        foreign: Mapping[str, RunForeign] = NO_FOREIGN,
    ) -> None:
        self.part = part.check()
        self._guard, self._limits = Guard(part, limits), limits
        self._events: list[str] = []
        self._program = PartProgram(  # deleted by `close`
            place, make_steps, part, weights, limits, self._events, foreign
        )
        self.rewinds, self.shifts = self._program.memory.rewinds, self._program.memory.shifts
        self._sequences: dict[int, SequenceStates] = {}
        self._counted: list[Counter] = []  # counters at `close`

    # --- Running --------------------------------------------------------------------------------

    def run(self, values: Mapping[str, Array], rows: Rows) -> dict[str, Array]:
        """Run all ops; see `Segment.run`."""
        return self.run_into(values, rows, {})

    def run_into(
        self, values: Mapping[str, Array], rows: Rows, out: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Run all ops; write the output to *out* if the rows of each sequence are adjacent.

        Otherwise the output is a new array; see `Segment.run_into`.
        """
        parts = self._guard.begin_run(values, rows)
        for part in parts:  # a new sequence begins at position 0
            if part.sequence in self._sequences:
                self._sequences[part.sequence].require(part.first)
        self._require_pages(parts)
        try:
            spans = []
            for part in parts:
                states = self._sequences.get(part.sequence) or self._of(part.sequence)
                spans.append(states.begin(part.first, part.end - part.first))
            made = self._run(parts, spans, values, rows, out)
            for part in parts:
                self._sequences[part.sequence].end(part.end)
        except BaseException:
            for part in parts:  # with several sequences, each one may be inconsistent
                if len(parts) > 1 or not self._guard.has(part.sequence):
                    self.forget(part.sequence)
                else:
                    self._guard.rewind(part.sequence, part.first)
            raise
        self._guard.end_run(rows)
        return made

    def _require_pages(self, parts: Sequence[Span]) -> None:
        """Raise OutOfPages if the rows need more pages than are free."""
        memory, needed = self._program.memory, 0
        if not memory.kv:
            return
        for part in parts:
            states = self._sequences.get(part.sequence)
            rows = part.end - part.first
            needed += states.needed(part.first, rows) if states else memory.pages.count(part.end)
        if needed:
            memory.pages.require(needed)

    def _run(
        self,
        parts: Sequence[Span],
        spans: Sequence[TableSpan],
        values: Mapping[str, Array],
        rows: Rows,
        out: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Run the rows in the order of *spans*; return results in the order of *rows*."""
        order = np.concatenate([part.rows for part in parts]) if len(parts) > 1 else None
        if order is None or (order == np.arange(len(order))).all():
            return self._program.run(values, rows, spans, out)
        constants, wanted = self._program.constants, rows.wanted[order]
        # The index of each wanted row in the selected rows, in the order of *spans*.
        selected = (np.cumsum(rows.wanted) - 1)[order[wanted]]

        def index_of(name: str) -> Array:
            return selected if name in constants.selected else order

        made = self._program.run(
            {name: values[name][index_of(name)] for name in constants.given},
            Rows(rows.sequences[order], rows.positions[order], wanted), spans, {},
        )  # fmt: skip
        for name, ordered in made.items():
            made[name] = np.empty_like(ordered)
            made[name][index_of(name)] = ordered
        return made

    def _of(self, sequence: int) -> SequenceStates:
        if sequence not in self._sequences:
            taken = {states.slot for states in self._sequences.values()}
            slot = next(i for i in range(self._limits.sequences) if i not in taken)
            states = SequenceStates(self._program.memory, sequence, slot)
            self._sequences[sequence] = states
        return self._sequences[sequence]

    # --- States ---------------------------------------------------------------------------------

    def read(self, state: Tensor, sequence: int) -> Array:
        """Return a copy of a state."""
        self._guard.begin_read(state, sequence)
        return self._of(sequence).read(state)

    def write(self, state: Tensor, sequence: int, values: Array) -> None:
        """Set a state to *values*."""
        self.write_exact(state, sequence, values)

    def read_exact(self, state: Tensor, sequence: int) -> Array:
        """Return an exact copy of a state: integers if a device stores it as integers."""
        self._guard.begin_read(state, sequence)
        return self._of(sequence).read(state, exact=True)

    def write_exact(self, state: Tensor, sequence: int, values: Array) -> bool:
        """Set a state to values that `read_exact` returned; return False if they were rounded."""
        is_new = not self._guard.has(sequence)
        self._guard.begin_write(state, sequence, values)
        states = self._of(sequence)
        try:
            return states.write(state, values)
        except OutOfPages:
            self._guard.rewind(sequence, states.length)
            if is_new:
                self.forget(sequence)
            raise

    def reach(self, sequence: int, length: int) -> int:
        """Return the largest number of positions, at most *length*, that `rewind` can keep."""
        states = self._sequences.get(sequence)
        return states.reach(length) if states and self.rewinds else 0

    def rewind(self, sequence: int, length: int) -> None:
        """Roll back to the first *length* positions; delta nets replay stored inputs."""
        states = self._sequences.get(sequence)
        if states is not None:

            def replay(rows: int, position: int) -> None:
                span = TableSpan(rows, position, states.slot)
                self._program.steps.replay(RowTable([span]))

            states.rewind(length, replay, self._limits.rows)
            self._guard.rewind(sequence, length)

    def shift(self, sequence: int, keep: int, drop: int) -> None:
        """Remove the *drop* positions after the first *keep*, and rotate later keys back."""
        states = self._sequences.get(sequence)
        if states is not None:
            states.shift(keep, drop)
            self._guard.rewind(sequence, states.length)

    def fork(self, source: int, target: int, length: int) -> None:
        """Replace *target* by a copy of *source*'s first *length* positions; see `Segment.fork`.

        Whole pages are shared; a partly filled last page is copied.
        """
        self._guard.begin_fork(source, target, length)
        states = self._sequences.get(source)
        if states is not None:
            before = self._sequences.get(target)
            states.require_fork(length, before.pages.alone() if before else 0)
        self.forget(target)
        if states is not None:
            self._of(target).begin_as(states, length)
            self._guard.end_fork(target, length)

    def capacity(self, without: Collection[int] = ()) -> Capacity | None:
        """Return the page counts, or None if the part has no attention; see `Segment.capacity`."""
        if self._guard.closed or not self._program.memory.kv:
            return None
        memory = self._program.memory
        pages = memory.pages
        lists = [self._sequences[each].pages for each in without if each in self._sequences]
        return Capacity(pages.size, pages.free_without(lists), pages.total, memory.kv_bytes)

    def forget(self, sequence: int) -> None:
        """Drop all states of a sequence, and free its pages and its slot."""
        states = self._sequences.get(sequence)
        if states is not None:
            states.close()
            del self._sequences[sequence]
        self._guard.forget(sequence)

    # --- Accounts -------------------------------------------------------------------------------

    def verify(self, sampler: Sampler) -> None:
        """Verify the products that *sampler* chooses, from now on."""
        if not self._guard.closed:
            self._program.steps.verify(sampler)

    def verifies(self, op: Op) -> bool:
        """Return True: products are verified in C, and no other op is verified."""
        del op
        return True

    def events(self) -> list[str]:
        """Return the sentences for reports that were added since the last call."""
        found = self._events[:]
        self._events.clear()
        return found

    def counters(self) -> Iterable[Counter]:
        """Return the counters of all ops; after `close`, as they were at `close`."""
        if self._guard.closed:
            return self._counted
        return list(self._program.steps.counters().values())

    def close(self) -> None:
        """Release weights, programs and states, but keep the counters."""
        if self._guard.closed:
            return
        self._counted = list(self.counters())
        self._guard.closed = True
        self._sequences.clear()
        self._program.constants.close()
        del self._program
