"""Run a graph in segments: a device runs the ops that it accepts, another device the others.

When a device fails, the other device takes over its segment, and the report has the reason.  If the
segment had states, the caller has to evaluate the tokens so far again.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from npurt.cpu.device import CpuDevice
from npurt.device import Device
from npurt.errors import DeviceFull, DriverError, NotOffloaded, SettingError
from npurt.graph.graph import Graph
from npurt.graph.ops import Op
from npurt.graph.rows import Rows
from npurt.graph.tensor import Kind
from npurt.products import ProductDevice
from npurt.runtime.report.ledger import Ledger, Row, row_of
from npurt.segment import Array, Compiler, Limits, Segment, Weights, split
from npurt.verify import Sampler


@dataclass(slots=True)
class Part:
    """A part of the graph and the device that runs it.

    Attributes:
        planned: Name of the device that was planned to run it.
        reason: Why another device runs it; "" if none does.
        before: Counts of the segments that it lost, by device.
    """

    graph: Graph
    planned: str
    actual: str
    reason: str
    segment: Segment
    before: list[Row]

    def rows(self) -> Iterator[Row]:
        """Yield the ledger's rows of the graph."""
        yield from self.before
        for counter in self.segment.counters():
            if counter.calls:
                yield row_of(counter, self.planned, self.actual, self.reason)


class Executor:
    """A graph on *device*; *other* runs the ops that *device* refuses.

    Args:
        kept: Names of tensors that runs return besides the graph's outputs.
        checks: Chooses the products to verify in segments that can verify; by default none.

    Raises:
        SettingError: A device runs no graphs.
        NotOffloaded: In strict mode: *device* refuses an op, or has no room.
    """

    def __init__(
        self,
        graph: Graph,
        device: Device,
        other: Device,
        weights: Weights,
        limits: Limits,
        ledger: Ledger,
        kept: Iterable[str] = (),
        checks: Sampler | None = None,
    ) -> None:
        self._checks = checks
        self._device, self._other = _compiler(device), _compiler(other)
        self._names = {id(self._device): device.caps.name, id(self._other): other.caps.name}
        self._weights, self._limits, self._ledger = weights, limits, ledger
        reasons = {op.name: self._device.why_not_op(op, limits) for op in graph.check().ops}
        if ledger.strict and any(reasons.values()):
            name, reason = next((name, why) for name, why in reasons.items() if why)
            raise NotOffloaded(
                f"{device.caps.name} cannot run {name}: {reason}",
                remedy=f"leave strict mode to let {other.caps.name} do it",
            )

        def owner(op: Op) -> Any:
            return self._other if reasons[op.name] else self._device

        self._parts: list[Part] = []
        for who, part in split(graph, owner, kept):
            why = "; ".join(dict.fromkeys(filter(None, (reasons[op.name] for op in part.ops))))
            self._parts.append(self._place(who, part, why))
        parts = self._parts  # not this object, which keeps the ledger
        ledger.follow(lambda: [row for part in parts for row in part.rows()])

    def _place(self, who: Compiler, part: Graph, reason: str) -> Part:
        planned = self._names[id(self._device)]
        try:
            segment = self._compile(who, part)
        except DeviceFull as error:
            if who is self._other:
                raise
            reason = error.what
            self._ledger.fallback(f"{planned} has no room for {part.name}: {error.what}")
            who, segment = self._other, self._compile(self._other, part)
        return Part(part, planned, self._names[id(who)], reason, segment, [])

    def _compile(self, who: Compiler, part: Graph) -> Segment:
        segment = who.compile(part, self._weights, self._limits)
        if self._checks:
            segment.verify(self._checks)
        return segment

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts in their order."""
        return tuple(self._parts)

    def run(self, inputs: Mapping[str, Array], rows: Rows) -> dict[str, Array] | None:
        """Run all parts; return the outputs and the kept tensors, by name.

        Returns:
            None when a device failed and its states are lost: `forget` these sequences and
            evaluate all their tokens again.

        Raises:
            NotOffloaded: In strict mode: the device failed.
        """
        values = dict(inputs)
        for part in self._parts:
            try:
                made = part.segment.run(values, rows)
            except DriverError as error:
                if part.actual == self._names[id(self._other)]:
                    raise
                self._move(part, copy(error))  # without its traceback, which keeps much alive
                if part.graph.tensors(Kind.STATE):
                    return None
                made = part.segment.run(values, rows)
            values |= made
            self._ledger.notes += part.segment.events()
        return values

    def _move(self, part: Part, error: DriverError) -> None:
        """Move a part to the other device for good."""
        other = self._names[id(self._other)]
        self._ledger.fallback(f"{other} goes on for {part.actual}: {error.what}")
        part.before += [
            row_of(c, part.planned, part.actual, part.reason)
            for c in part.segment.counters()
            if c.calls
        ]
        part.segment.close()
        part.segment = self._compile(self._other, part.graph)
        part.actual, part.reason = other, f"{part.planned} failed: {error.what}"

    # --- States ---------------------------------------------------------------------------------

    def read(self, sequence: int = 0) -> dict[str, Array]:
        """Return copies of all states of a sequence by name, in the graph's form.

        Raises:
            DriverError: A device failed.
        """
        return {
            tensor.name: part.segment.read(tensor, sequence)
            for part in self._parts
            for tensor in part.graph.tensors(Kind.STATE)
        }

    def write(self, states: Mapping[str, Array], sequence: int = 0) -> None:
        """Set the states of a sequence to what `read` returned."""
        for part in self._parts:
            for tensor in part.graph.tensors(Kind.STATE):
                part.segment.write(tensor, sequence, states[tensor.name])

    def checkpoint(self, sequence: int = 0) -> list[Any]:
        """Return copies, for `restore`, of the states that cannot be cut at a position."""
        return [part.segment.checkpoint(sequence) for part in self._parts]

    def restore(self, checkpoint: list[Any], sequence: int = 0) -> None:
        """Go back to a checkpoint.  Keys and values after its position are overwritten later."""
        for part, kept in zip(self._parts, checkpoint, strict=True):
            part.segment.restore(sequence, kept)

    def forget(self, sequence: int = 0) -> None:
        """Drop all states of a sequence."""
        for part in self._parts:
            part.segment.forget(sequence)

    def close(self) -> None:
        """Release all segments."""
        for part in self._parts:
            part.segment.close()


def runs_graphs(device: Device) -> bool:
    """Return whether *device* runs models in segments.

    The CPU, and devices that multiply for it, run models by a plan (docs/decisions/019).
    """
    return isinstance(device, Compiler) and not isinstance(device, CpuDevice | ProductDevice)


def _compiler(device: Device) -> Compiler:
    if not isinstance(device, Compiler):
        raise SettingError(
            f"{device.caps.name} does not run graphs",
            remedy="use a device with compile(), such as numpy",
        )
    return device
