"""A graph: ops in the order they run, with a check of their order and shapes."""

from dataclasses import dataclass

from npurt.errors import GraphError
from npurt.graph.ops import Op
from npurt.graph.shapes import why_wrong
from npurt.graph.tensor import Kind, Tensor

WRITTEN = (Kind.ACTIVATION, Kind.OUTPUT)  # kinds of tensors that ops write


@dataclass(frozen=True, slots=True)
class Graph:
    """The ops of a forward pass or of a part of it.

    Every tensor is written once, before it is read.

    Attributes:
        name: The name of the graph.
        ops: The ops in the order they run.
        given: Names of inputs, and of activations that another part writes and this one reads.
        wanted: Names of tensors that other parts read, besides the outputs.
    """

    name: str
    ops: tuple[Op, ...]
    given: frozenset[str] = frozenset()
    wanted: frozenset[str] = frozenset()

    def tensors(self, kind: Kind) -> tuple[Tensor, ...]:
        """Return the tensors of one kind, in order of first use."""
        found: dict[str, Tensor] = {}
        for op in self.ops:
            for tensor in (*op.reads, *op.states, *op.writes):
                if tensor.kind is kind:
                    found.setdefault(tensor.name, tensor)
        return tuple(found.values())

    def last_use(self) -> dict[str, int]:
        """Return, by name of each written tensor, the index of the last op that uses it."""
        last: dict[str, int] = {}
        for index, op in enumerate(self.ops):
            last |= {tensor.name: index for tensor in (*op.reads, *op.writes)}
        return {t.name: last[t.name] for op in self.ops for t in op.writes}

    def check(self) -> "Graph":
        """Return the graph if it is valid.

        Raises:
            GraphError: A tensor is read before it is written, or is written twice; two tensors have
                the same name; two ops write the same state; or shapes do not fit.
        """
        known: dict[str, Tensor] = {}
        written: set[str] = set()
        there = set(self.given)
        advanced: set[str] = set()
        for op in self.ops:
            for tensor in (*op.reads, *op.states, *op.writes):
                first = known.setdefault(tensor.name, tensor)
                if first is not tensor and first != tensor:
                    raise _wrong(op, f"{tensor} and {first} have the same name")
            _check_reads(op, there)
            _check_writes(op, written)
            _check_states(op, advanced)
            made = [tensor.name for tensor in op.writes]
            written.update(made)
            there.update(made)
            advanced.update(tensor.name for tensor in op.states)
            reason = why_wrong(op)
            if reason:
                raise _wrong(op, reason)
        return self


def _check_reads(op: Op, there: set[str]) -> None:
    for tensor in op.reads:
        if tensor.kind in WRITTEN and tensor.name not in there:
            raise _wrong(op, f"it reads {tensor.name}, which no op before it writes")
        if tensor.kind is Kind.STATE:
            raise _wrong(op, f"it reads the state {tensor.name} as an activation")


def _check_writes(op: Op, written: set[str]) -> None:
    for tensor in op.writes:
        if tensor.kind not in WRITTEN:
            raise _wrong(op, f"it writes {tensor.name}, which is a {tensor.kind.value}")
        if tensor.name in written:
            raise _wrong(op, f"an earlier op also writes {tensor.name}")


def _check_states(op: Op, advanced: set[str]) -> None:
    for tensor in op.states:
        if tensor.kind is not Kind.STATE:
            raise _wrong(op, f"its state {tensor.name} is a {tensor.kind.value}")
        if tensor.name in advanced:
            raise _wrong(op, f"an earlier op also writes the state {tensor.name}")


def _wrong(op: Op, what: str) -> GraphError:
    return GraphError(
        f"{type(op).__name__} {op.name}: {what}",
        remedy="correct the function that builds this graph (docs/extending)",
    )
