"""Run a graph in segments: one device runs the ops that it supports, another device the rest.

When a device fails, the other device takes over its segment, and the report has the reason.  If the
segment had states, they are lost, and the caller has to evaluate all tokens again.
"""

import math
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from npurt.cpu.device import CpuDevice
from npurt.device.device import Device
from npurt.device.products import ProductDevice
from npurt.device.segment import (
    Array,
    Capacity,
    Compiler,
    Limits,
    Segment,
    Shifts,
    Weights,
    recurrent,
    split,
)
from npurt.device.verify import Sampler
from npurt.errors import DeviceFull, DriverError, NotOffloaded, SettingError
from npurt.graph.graph import Graph
from npurt.graph.ops import Op
from npurt.graph.rows import Rows
from npurt.graph.tensor import Kind
from npurt.runtime.execute.offload import Offload
from npurt.runtime.report.ledger import Ledger, Row, row_of

CHECKPOINTS = 4  # recent copies of a sequence's recurrent states, each made before a run


@dataclass(slots=True)
class Part:
    """A part of the graph and the device that runs it.

    Attributes:
        planned: Name of the device that was planned to run the part.
        actual: Name of the device that runs the part.
        reason: The reason why *actual* is not *planned*; "" if they are equal.
        before: Counts of earlier segments of the part, whose devices failed.
        checkpoints: Copies of recurrent states, by sequence and number of positions.
    """

    graph: Graph
    planned: str
    actual: str
    reason: str
    segment: Segment
    before: list[Row]
    checkpoints: dict[int, OrderedDict[int, Any]] = field(default_factory=dict)

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether to copy recurrent states before runs, because the segment cannot rewind them."""
        return not self.segment.rewinds and bool(recurrent(self.graph))

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
        for counter in self.segment.counters():
            if counter.calls:
                yield row_of(counter, self.planned, self.actual, self.reason)


class Executor:
    """Runs a graph on *device*; *other* runs the ops that *device* refuses.

    Args:
        graph: A graph that passes `Graph.check`.
        extra_outputs: Names of tensors that runs return besides the graph's outputs.
        checks: Chooses the products to verify in segments that can verify; by default none.

    Attributes:
        losses: Number of failures of devices that had states.  After a failure the states of all
            sequences are lost: the caller has to `forget` every sequence and evaluate its tokens
            again.

    Raises:
        SettingError: *device* or *other* does not run graphs.
        NotOffloaded: In strict mode, *device* refuses an op, or has too little memory.
    """

    def __init__(
        self,
        graph: Graph,
        device: Device | Compiler,
        other: Device | Compiler,
        weights: Weights,
        limits: Limits,
        ledger: Ledger,
        extra_outputs: Iterable[str] = (),
        checks: Sampler | None = None,
    ) -> None:
        self.losses = 0
        self._checks = checks
        self._device, self._other = _require_compiler(device), _require_compiler(other)
        self._names = {id(self._device): device.caps.name, id(self._other): other.caps.name}
        # An Offload traces its own runs, in more detail.
        self._records = device.caps.name if isinstance(device, Offload) else ""
        self._weights, self._limits, self._ledger = weights, limits, ledger
        reasons = {op.name: self._device.why_not_op(op, limits) for op in graph.ops}
        if ledger.strict and any(reasons.values()):
            name, reason = next((name, why) for name, why in reasons.items() if why)
            raise NotOffloaded(
                f"{device.caps.name} cannot run {name}: {reason}",
                remedy=f"turn strict mode off to run it on {other.caps.name}",
            )

        def owner(op: Op) -> Any:
            return self._other if reasons[op.name] else self._device

        self._parts: list[Part] = []
        try:
            for who, part in split(graph, owner, extra_outputs):
                why = "; ".join(dict.fromkeys(filter(None, (reasons[op.name] for op in part.ops))))
                self._parts.append(self._place(who, part, why))
        except BaseException:
            self.close()
            raise
        weak_self = weakref.ref(self)  # avoids a cycle: the segments refer to the ledger

        def rows() -> Iterator[Row]:
            alive = weak_self()
            return (row for part in (alive.parts if alive else ()) for row in part.rows())

        ledger.follow(rows)

    def _place(self, who: Compiler, part: Graph, reason: str) -> Part:
        planned = self._names[id(self._device)]
        try:
            segment = self._compile(who, part)
        except DeviceFull as error:
            if who is self._other:
                raise
            reason = error.what
            self._ledger.fallback(f"{planned} has no space for {part.name}: {error.what}")
            who, segment = self._other, self._compile(self._other, part)
        return Part(part, planned, self._names[id(who)], reason, segment, [])

    def _compile(self, who: Compiler, part: Graph) -> Segment:
        segment = who.compile(part, self._weights, self._limits)
        if self._checks:
            segment.verify(self._checks)
        return segment

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, in the order of execution."""
        return tuple(self._parts)

    def run(
        self, inputs: Mapping[str, Array], rows: Rows, out: Mapping[str, Array] | None = None
    ) -> dict[str, Array] | None:
        """Run all parts; return the outputs and the kept tensors, by name.

        Args:
            out: Arrays for results, by name: see `Segment.run_into`.

        Returns:
            The tensors; or None if a device failed and its states are lost: see `losses`.

        Raises:
            NotOffloaded: In strict mode, the device failed.
        """
        values = dict(inputs)
        for part in self._parts:
            try:
                made = self._run(part, values, rows, out or {})
            except DriverError as error:
                self._move(part, error)
                if part.graph.tensors(Kind.STATE):
                    return None
                made = self._run(part, values, rows, {})
            values |= made
            self._ledger.notes += part.segment.events()
        return values

    def _run(
        self, part: Part, values: Mapping[str, Array], rows: Rows, out: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Run the part's segment, and record the run in the ledger's trace."""
        trace = self._ledger.trace
        if trace is None or part.actual == self._records:
            return part.segment.run_into(values, rows, out)
        with trace.span(part.graph.name, part.actual, rows=len(rows)):
            return part.segment.run_into(values, rows, out)

    def _move(self, part: Part, error: DriverError) -> None:
        """Move a part to the other device permanently.

        If the other device already runs the part, raise *error*.
        """
        other = self._names[id(self._other)]
        if part.actual == other:
            raise error
        error = copy(error)  # drops the traceback, whose frames keep objects alive
        self._ledger.fallback(f"{other} takes over from {part.actual}: {error.what}")
        part.before += [
            row_of(c, part.planned, part.actual, part.reason)
            for c in part.segment.counters()
            if c.calls
        ]
        failed, part.segment = part.segment, self._compile(self._other, part.graph)
        part.actual, part.reason = other, f"{part.planned} failed: {error.what}"
        part.checkpoints.clear()
        failed.close()
        self.losses += bool(part.graph.tensors(Kind.STATE))

    # --- States ---------------------------------------------------------------------------------

    def begin(self, sequence: int, position: int) -> bool:
        """Prepare for a run from *position* on; return False if a device lost its states."""
        try:
            for part in self._parts:
                part.begin(sequence, position)
        except DriverError as error:
            self._move(part, error)
            return False
        return True

    def reach(self, sequence: int, length: int) -> int:
        """Return the largest number of positions, at most *length*, that `rewind` can keep."""
        while (minimum := min(part.reach(sequence, length) for part in self._parts)) < length:
            length = minimum
        return length

    def rewind(self, sequence: int, length: int) -> int:
        """Keep the first *length* positions; *length* is a result of `reach`.

        Returns:
            The number of positions that were kept: *length*, or 0 if a device failed.
        """
        failed = False
        for part in self._parts:
            try:
                part.rewind(sequence, length)
            except DriverError as error:
                self._move(part, error)
                failed = True
        if failed:
            self.forget(sequence)
        return 0 if failed else length

    def _shifting(self) -> list[Shifts] | None:
        """Return the segments with states, or None if one of them cannot remove positions."""
        segments = [part.segment for part in self._parts if part.graph.tensors(Kind.STATE)]
        able: list[Shifts] = [s for s in segments if isinstance(s, Shifts) and s.shifts]
        return able if len(able) == len(segments) else None

    @property
    def shifts(self) -> bool:
        """Whether `shift` can remove positions from the middle of a sequence."""
        return self._shifting() is not None

    def shift(self, sequence: int, keep: int, drop: int) -> None:
        """Remove *drop* positions after the first *keep*; the caller has checked `shifts`."""
        for segment in self._shifting() or ():
            segment.shift(sequence, keep, drop)

    @property
    def recurrent(self) -> bool:
        """Whether the graph has recurrent states, which have no axis of positions."""
        return any(recurrent(part.graph) for part in self._parts)

    @property
    def recurrent_bytes(self) -> int:
        """Bytes of the recurrent states of one sequence, as float32."""
        tensors = [tensor for part in self._parts for tensor in recurrent(part.graph)]
        return 4 * sum(math.prod(dim.size or 1 for dim in tensor.shape) for tensor in tensors)

    # --- Several sequences ----------------------------------------------------------------------

    def fork(self, source: int, target: int, length: int) -> bool:
        """Replace the states of *target* by the first *length* positions of *source*.

        See `Segment.fork`.

        Returns:
            False if a device failed and its states are lost: see `losses`.

        Raises:
            LayoutError: As in `Segment.fork`; *target* has no states then.
            OutOfPages: No page is free for the positions that cannot be shared; *target* has no
                states then.
        """
        try:
            for part in self._parts:
                part.fork(source, target, length)
        except DriverError as error:
            self._move(part, error)
            self.forget(target)
            return False
        except BaseException:
            self.forget(target)
            raise
        return True

    def capacity(self, without: Collection[int] = ()) -> Capacity | None:
        """Return the page counts of the segment with the fewest free pages, or None without pages.

        Args:
            without: As in `Segment.capacity`.
        """
        found = [each for part in self._parts if (each := part.segment.capacity(without))]
        return min(found, key=lambda capacity: capacity.free, default=None)

    def read(self, sequence: int) -> dict[str, Array]:
        """Return exact copies of all states by name; see `Segment.read_exact`.

        Raises:
            DriverError: A device failed.
        """
        return {
            tensor.name: part.segment.read_exact(tensor, sequence)
            for part in self._parts
            for tensor in part.graph.tensors(Kind.STATE)
        }

    def write(self, sequence: int, states: Mapping[str, Array]) -> bool:
        """Set all states to *states*, a result of `read`; return False if some were rounded."""
        exact = True
        for part in self._parts:
            try:
                exact &= part.write(sequence, states)
            except DriverError as error:
                self._move(part, error)
                exact &= part.write(sequence, states)
        return exact

    def forget(self, sequence: int) -> None:
        """Drop all states of a sequence."""
        for part in self._parts:
            part.forget(sequence)

    def close(self) -> None:
        """Release all segments."""
        for part in self._parts:
            part.segment.close()


def runs_graphs(device: object) -> TypeGuard[Compiler]:
    """Return whether *device* compiles all ops of models into segments.

    The other devices run only products, and the CPU runs the other ops: see
    `npurt.runtime.execute.offload`.
    """
    return isinstance(device, Compiler) and not isinstance(device, CpuDevice | ProductDevice)


def _require_compiler(device: Device | Compiler) -> Compiler:
    """Return *device*; raise SettingError if it does not run graphs."""
    if not isinstance(device, Compiler):
        raise SettingError(
            f"{device.caps.name} does not run graphs",
            remedy="use a device with compile(), such as numpy",
        )
    return device
