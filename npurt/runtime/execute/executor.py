"""Run a graph: the host runs one program, whose steps call the parts on another device.

If the device fails, it is opened again, or the host takes over its parts (`ForeignParts`), and the
report has the reason.  If a part had states, they are lost, and the caller has to evaluate all
tokens again.
"""

import functools
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, TypeGuard

from npurt.cpu.device import CpuDevice
from npurt.device.device import Device
from npurt.device.products import ProductDevice
from npurt.device.segment import (
    Array,
    Capacity,
    Compiler,
    Host,
    Limits,
    Shifts,
    Weights,
    recurrent,
    split,
)
from npurt.device.verify import Sampler
from npurt.errors import DriverError, NotOffloaded, SettingError
from npurt.graph import ops
from npurt.graph.graph import WRITTEN, Graph
from npurt.graph.ops import Op
from npurt.graph.rows import Rows
from npurt.graph.tensor import Kind
from npurt.runtime.execute.foreign import NO_ARRAYS, Budget, ForeignParts, StatesLost
from npurt.runtime.execute.offload import Offload
from npurt.runtime.execute.part import Part
from npurt.runtime.report.ledger import Ledger, Row


class Executor:
    """Runs a graph on *device*; *other* runs the ops that *device* refuses.

    If *device* is the CPU or an `Offload`, it is the host, else *other* is.  The host's program
    calls the parts that run on the other device.

    Args:
        graph: A graph that passes `Graph.check`.
        extra_outputs: Names of tensors that runs return besides the graph's outputs.
        checks: Chooses the products to verify in segments that can verify; by default none.

    Attributes:
        recurrent: Whether the graph has recurrent states, which have no axis of positions.
        recurrent_bytes: Bytes of the recurrent states of one sequence, as float32.

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
        states = recurrent(graph)
        self.recurrent = bool(states)
        self.recurrent_bytes = 4 * sum(tensor.row_elements for tensor in states)
        chosen, self._other = _require_compiler(device), _require_compiler(other)
        self._names = device.caps.name, other.caps.name
        self._weights, self._ledger, self._checks = weights, ledger, checks
        self._budget = Budget(graph, limits)
        reasons = {op.name: chosen.why_not_op(op, limits) for op in graph.ops}
        if ledger.strict and any(reasons.values()):
            name, reason = next((name, why) for name, why in reasons.items() if why)
            raise NotOffloaded(
                f"{device.caps.name} cannot run {name}: {reason}",
                remedy=f"turn strict mode off to run it on {other.caps.name}",
            )
        both = chosen, self._other
        hosting = 0 if isinstance(device, CpuDevice | Offload) else 1
        host, away = both[hosting], both[1 - hosting]
        host_name, away_name = self._names[hosting], self._names[1 - hosting]
        self._foreign = ForeignParts(
            away, host, (away_name, host_name), weights, self._budget, ledger, checks
        )
        self._host: Part | None = None  # None if a part on the other device has all ops
        self._host_losses = 0

        def why(part: Sequence[Op]) -> str:
            return "; ".join(dict.fromkeys(filter(None, (reasons[op.name] for op in part))))

        try:
            parts = split(graph, lambda op: both[bool(reasons[op.name])], extra_outputs)
            own = [op for who, part in parts if who is host for op in part.ops]
            for who, part in parts:
                if who is away:
                    self._foreign.add(part, device.caps.name, why(part.ops))
            if own:
                program = _calling(graph, parts, away, extra_outputs)
                self._host = self._compile(host, host_name, program, why(own))
        except BaseException:
            self.close()
            raise
        weak_self = weakref.ref(self)  # avoids a cycle: the segments refer to the ledger

        def rows() -> Iterator[Row]:
            alive = weak_self()
            return (row for part in (alive.parts if alive else ()) for row in part.rows())

        ledger.follow(rows)

    def _compile(self, host: Compiler, name: str, program: Graph, reason: str) -> Part:
        limits = self._budget.of(program)
        calls = [op for op in program.ops if isinstance(op, ops.Foreign)]
        if calls:
            assert isinstance(host, Host), f"{name} runs no parts of other devices"
            foreign = {op.name: functools.partial(self._foreign.run, op.name) for op in calls}
            segment = host.compile(program, self._weights, limits, foreign)
        else:
            segment = host.compile(program, self._weights, limits)
        if self._checks:
            segment.verify(self._checks)
        traces = isinstance(host, Offload)
        return Part(program, self._names[0], name, reason, segment, traces_itself=traces)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The host's part, if there is one, then the others in the order of execution."""
        return (*filter(None, [self._host]), *self._foreign.parts)

    @property
    def losses(self) -> int:
        """Number of failures after which the states of all sequences are lost.

        The caller has to `forget` every sequence and evaluate its tokens again.
        """
        return self._host_losses + self._foreign.losses

    # --- Running --------------------------------------------------------------------------------

    def run(
        self, inputs: Mapping[str, Array], rows: Rows, out: Mapping[str, Array] = NO_ARRAYS
    ) -> dict[str, Array] | None:
        """Run all parts; return the outputs and the kept tensors, by name.

        Args:
            out: Arrays for results, by name: see `Segment.run_into`.

        Returns:
            The tensors; or None if a device failed and its states are lost: see `losses`.

        Raises:
            NotOffloaded: In strict mode, the device failed.
        """
        host = self._host
        self._ledger.runs += 1
        try:
            if host is None:
                return self._foreign.run_all(inputs, rows, out)
            if host.traces_itself:
                made = host.segment.run_into(inputs, rows, out)
            else:
                made = host.run(self._ledger, inputs, rows, out)
        except StatesLost:
            return None
        except DriverError as error:
            assert host is not None
            self._recover(host, error)
            if host.has_states:
                return None
            return self.run(inputs, rows)
        self._ledger.notes += host.segment.events()
        return made

    def _recover(self, part: Part, error: DriverError) -> None:
        """Replace what a failure of *part* has cost; the host's program moves to the other device.

        Raises:
            DriverError: No other device can run the host's program.
        """
        if part is not self._host:
            self._foreign.recover(part, error)
            return
        if part.actual == self._names[1]:
            raise error
        error = copy(error)  # drops the traceback, whose frames keep objects alive
        name = self._names[1]
        self._ledger.fallback(f"{name} takes over from {part.actual}: {error.what}")
        part.segment.close()
        reason = f"{part.planned} failed: {error.what}"
        self._host = self._compile(self._other, name, part.graph, reason)
        self._host.before = [*part.before, *part.counted()]
        self._host_losses += part.has_states

    # --- States ---------------------------------------------------------------------------------

    def begin(self, sequence: int, position: int) -> bool:
        """Prepare for a run from *position* on; return False if a device lost its states."""
        if not self.recurrent:
            return True
        for part in self.parts:
            try:
                part.begin(sequence, position)
            except DriverError as error:
                self._recover(part, error)
                return False
        return True

    def reach(self, sequence: int, length: int) -> int:
        """Return the largest number of positions, at most *length*, that `rewind` can keep."""
        parts = self.parts
        while (minimum := min(part.reach(sequence, length) for part in parts)) < length:
            length = minimum
        return length

    def rewind(self, sequence: int, length: int) -> int:
        """Keep the first *length* positions; *length* is a result of `reach`.

        Returns:
            The number of positions that were kept: *length*, or 0 if a device failed.
        """
        for part in self.parts:
            try:
                part.rewind(sequence, length)
            except DriverError as error:
                self._recover(part, error)
                self.forget(sequence)
                return 0
        return length

    def _shifting(self) -> list[Shifts] | None:
        """Return the segments with states, or None if one of them cannot remove positions."""
        segments = [part.segment for part in self.parts if part.has_states]
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
            for part in self.parts:
                try:
                    part.fork(source, target, length)
                except DriverError as error:
                    self._recover(part, error)
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
        found = [each for part in self.parts if (each := part.segment.capacity(without))]
        return min(found, key=lambda capacity: capacity.free, default=None)

    def read(self, sequence: int) -> dict[str, Array]:
        """Return exact copies of all states by name; see `Segment.read_exact`.

        Raises:
            DriverError: A device failed.
        """
        return {
            tensor.name: part.segment.read_exact(tensor, sequence)
            for part in self.parts
            for tensor in part.graph.tensors(Kind.STATE)
        }

    def write(self, sequence: int, states: Mapping[str, Array]) -> bool:
        """Set all states to *states*, a result of `read`; return False if some were rounded.

        If a device fails, it is replaced, and all states are written again.
        """
        exact = True
        for part in self.parts:
            try:
                exact &= part.write(sequence, states)
            except DriverError as error:
                self._recover(part, error)
                return self.write(sequence, states)
        return exact

    def forget(self, sequence: int) -> None:
        """Drop all states of a sequence."""
        for part in self.parts:
            part.forget(sequence)

    def close(self) -> None:
        """Release all segments."""
        for part in self.parts:
            part.segment.close()


def _calling(
    graph: Graph, parts: Sequence[tuple[Any, Graph]], away: object, extra_outputs: Iterable[str]
) -> Graph:
    """Return the program of the host: *graph* with an op for each part that runs on *away*."""
    if len(parts) == 1:
        return parts[0][1]
    listed: list[Op] = []
    for who, part in parts:
        listed += [_call(part)] if who is away else part.ops
    given = {t.name for op in listed for t in op.reads if t.kind is Kind.INPUT}
    made = {t.name for op in listed for t in op.writes}
    return Graph(graph.name, tuple(listed), frozenset(given), frozenset(made & set(extra_outputs)))


def _call(part: Graph) -> ops.Foreign:
    read = {t.name: t for op in part.ops for t in op.reads if t.name in part.given}
    made = {t.name: t for op in part.ops for t in op.writes if t.kind in WRITTEN}
    outs = [t for t in made.values() if t.name in part.wanted or t.kind is Kind.OUTPUT]
    return ops.Foreign(name=part.name, inputs=tuple(read.values()), outs=tuple(outs))


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
