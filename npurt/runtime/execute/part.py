"""A part of a graph on one device: its segment, its states and its counts."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from npurt.device.segment import Array, Segment, recurrent
from npurt.device.verify import WrongResult
from npurt.graph.graph import Graph
from npurt.graph.rows import Rows
from npurt.graph.tensor import Kind
from npurt.runtime.execute.checks import Checks, described
from npurt.runtime.report.ledger import Ledger, Row, row_of
from npurt.settings import HOSTS

CHECKPOINTS = 4  # recent copies of a sequence's recurrent states, each made before a run


@dataclass(slots=True, eq=False)
class Part:
    """A part of the graph and the device that runs it.

    Attributes:
        planned: Name of the device that was planned to run the part.
        actual: Name of the device that runs the part.
        reason: The reason why *actual* is not *planned*; "" if they are equal.
        traces_itself: The segment records its runs in the trace, in more detail.
        checks: Verifies ops of the segment, if it does not do so itself.
        calls: Number of runs of the segment.
        before: Counts of earlier segments of the part.
        checkpoints: Copies of recurrent states, by sequence and number of positions.
    """

    graph: Graph
    planned: str
    actual: str
    reason: str
    segment: Segment
    traces_itself: bool = False
    checks: Checks | None = None
    calls: int = 0
    before: list[Row] = field(default_factory=list)
    checkpoints: dict[int, OrderedDict[int, Any]] = field(default_factory=dict)

    @property
    def has_states(self) -> bool:
        """Whether an op of the part has states."""
        return bool(self.graph.tensors(Kind.STATE))

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether to copy recurrent states before runs, because the segment cannot rewind them."""
        return not self.segment.rewinds and bool(recurrent(self.graph))

    def run(
        self, ledger: Ledger, values: Mapping[str, Array], rows: Rows, out: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Run the segment, see `Segment.run_into`, verify it, and record it in the ledger's trace.

        Raises:
            WrongResult: An op that was verified is wrong; the states have advanced.
        """
        self.calls += 1
        if self.checks:
            self.checks.choose(rows)
        if ledger.trace is None or self.traces_itself:
            made = self.segment.run_into(values, rows, out)
        else:
            with ledger.trace.span(self.graph.name, self.actual, rows=len(rows)):
                made = self.segment.run_into(values, rows, out)
        if self.checks and (op := self.checks.wrong(values, made, rows)):
            raise WrongResult(f"{self.actual} computed a wrong {described(op)}")
        return made

    def begin(self, sequence: int, position: int) -> None:
        """Copy the recurrent states, which include *position* positions, if `keeps_checkpoints`."""
        if not self.keeps_checkpoints or not position:
            return
        saved = self.checkpoints.setdefault(sequence, OrderedDict())
        if position not in saved:
            saved[position] = self.segment.checkpoint(sequence)
            while len(saved) > CHECKPOINTS:
                saved.popitem(last=False)

    def reach(self, sequence: int, length: int) -> int:
        """Return the largest number of positions, at most *length*, that `rewind` can keep."""
        if self.keeps_checkpoints:
            saved = self.checkpoints.get(sequence, ())
            return max((at for at in saved if at <= length), default=0)
        return self.segment.reach(sequence, length)

    def rewind(self, sequence: int, length: int) -> None:
        """Keep the first *length* positions; *length* is a result of `reach`."""
        if not length:
            self.forget(sequence)
            return
        if not self.keeps_checkpoints:
            self.segment.rewind(sequence, length)
            return
        saved = self.checkpoints[sequence]
        self.segment.restore(sequence, saved[length])
        for at in [at for at in saved if at > length]:
            del saved[at]

    def forget(self, sequence: int) -> None:
        """Drop all states of a sequence."""
        self.checkpoints.pop(sequence, None)
        self.segment.forget(sequence)

    def fork(self, source: int, target: int, length: int) -> None:
        """Replace the states of *target* by the first *length* positions of *source*."""
        self.checkpoints.pop(target, None)
        self.segment.fork(source, target, length)

    def write(self, sequence: int, states: Mapping[str, Array]) -> bool:
        """Set the sequence's states; return False if some were rounded."""
        self.checkpoints.pop(sequence, None)
        exact = True
        for tensor in self.graph.tensors(Kind.STATE):
            exact &= self.segment.write_exact(tensor, sequence, states[tensor.name])
        return exact

    def rows(self) -> Iterator[Row]:
        """Yield the ledger's rows of this part."""
        yield from self.before
        yield from self.counted()

    def counted(self) -> Iterator[Row]:
        """Yield the ledger's rows of the current segment."""
        calls = self.calls if self.actual not in HOSTS else 0
        for counter in self.segment.counters():
            if counter.calls:
                row = row_of(counter, self.planned, self.actual, self.reason)
                if self.checks:
                    row.verified += self.checks.verified[counter.name]
                    row.failed += self.checks.failed[counter.name]
                row.device_calls, calls = calls, 0
                yield row
