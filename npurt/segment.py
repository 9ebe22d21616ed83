"""The contract of devices that run parts of a graph.

A device compiles ops of a graph, in order, into a segment: weights laid out, buffers planned.  A
segment runs rows and owns the states of its ops.  Whoever calls it keeps the accounts: a segment
returns what it counted, and raises `DriverError` when its device fails.
"""

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from npurt.delta import state_values
from npurt.device import Caps
from npurt.errors import LayoutError, SettingError
from npurt.graph import ops
from npurt.graph.cost import cost
from npurt.graph.graph import Graph
from npurt.graph.ops import Op
from npurt.graph.roles import role
from npurt.graph.rows import Rows, Span
from npurt.graph.tensor import POSITIONS, SELECTED, Kind, Tensor
from npurt.quant.tensor import QTensor
from npurt.verify import Sampler

Array = npt.NDArray[Any]
KV_DTYPES = {"f16": np.float16, "f32": np.float32}


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes that a segment has to be ready for.

    Attributes:
        rows: Rows of one run.
        positions: Positions of one sequence.
        sequences: Sequences that have states at the same time.
        kv_dtype: Element type of cached keys and values, one of `KV_DTYPES`.

    Raises:
        SettingError: A size is below 1, or there is no such element type.
    """

    rows: int
    positions: int
    sequences: int = 1
    kv_dtype: str = "f16"

    def __post_init__(self) -> None:
        if self.kv_dtype not in KV_DTYPES:
            raise SettingError(
                f"kv_dtype {self.kv_dtype!r} is not an element type of keys and values",
                remedy=f"use {' or '.join(map(repr, KV_DTYPES))}",
            )
        for name in ("rows", "positions", "sequences"):
            if getattr(self, name) < 1:
                raise SettingError(
                    f"a segment cannot be ready for {getattr(self, name)} {name}",
                    remedy=f"use {name}=1 or more",
                )


class Weights(Protocol):
    """Gives a device the weights and tables of a graph, by name of the tensor."""

    def quantised(self, name: str) -> QTensor:
        """Return a weight as the file has it: ``[N, K]``, or ``[E, N, K]`` for experts."""

    def values(self, name: str) -> Array:
        """Return a weight or a table as floats.

        Raises:
            ModelFormatError: It holds NaN or infinity.
        """


@dataclass(slots=True)
class Counter:
    """What an op, or a group of ops of one role, did so far.

    Attributes:
        op: The role, as in reports: ``attn_qkv``, ``norm``, ...
        tensor: Names of its weights; "" for ops without.
        shape: ``(N, K)`` of a product, else ().
        calls: Runs.
        rows: Rows over all runs.
        macs: Multiply-adds.
        nbytes: Bytes of weights read.
        seconds: Wall time; 0 where only the segment as a whole is timed.
        verified: Results that were checked.
        failed: Those of them that were wrong.
    """

    op: str
    tensor: str = ""
    shape: tuple[int, ...] = ()
    calls: int = 0
    rows: int = 0
    macs: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    verified: int = 0
    failed: int = 0

    @classmethod
    def of(cls, op: Op) -> "Counter":
        """Return the counter of one op, at zero."""
        if not isinstance(op, ops.MatMul | ops.ExpertMatMul):
            return cls(role(op))
        n, k = op.weight.shape[-2:]
        return cls(op.role, op.weight.name.removesuffix(".weight"), (n.size or 0, k.size or 0))

    def add(self, other: "Counter") -> None:
        """Add what another counter of the same op counted."""
        for name in ("calls", "rows", "macs", "nbytes", "seconds", "verified", "failed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def count(self, op: Op, rows: int, seconds: float) -> None:
        """Add a run of *op*."""
        self.calls += 1
        self.rows += rows
        self.seconds += seconds
        if isinstance(op, ops.MatMul | ops.ExpertMatMul):
            work = cost(op, rows)
            self.macs += work.macs
            self.nbytes += work.weight_bytes


class Segment(abc.ABC):
    """A part of a graph on one device.  One thread at a time.

    Attributes:
        part: Its ops.  It is given the tensors ``part.given``, and returns ``part.wanted``.
        rewinds: `rewind` takes recurrent states back, too.
    """

    part: Graph
    rewinds: bool = False

    @abc.abstractmethod
    def run(self, values: Mapping[str, Array], rows: Rows) -> dict[str, Array]:
        """Run all ops; return the tensors ``part.wanted`` by name, float32 ``[T, columns]``.

        Args:
            values: The tensors ``part.given`` by name.
            rows: Sequence and position of each row.

        Raises:
            LayoutError: Values or rows do not fit; nothing has changed.
            DriverError: The device failed; the states of these sequences are lost.
        """

    @abc.abstractmethod
    def read(self, state: Tensor, sequence: int) -> Array:
        """Return a copy of a state in its canonical form: shape and values as the graph says.

        Raises:
            LayoutError: The segment has no such state, no room for the sequence, or was closed.
            DriverError: The device failed.
        """

    @abc.abstractmethod
    def write(self, state: Tensor, sequence: int, values: Array) -> None:
        """Set a state to *values*, in the form that `read` returns.

        Raises:
            LayoutError: As of `read`, or *values* have another shape; nothing has changed.
        """

    def read_exact(self, state: Tensor, sequence: int) -> Array:
        """Return a copy of a state that says all of it.

        It is what `read` returns; or, where a device has the state of a delta net in integers,
        those integers: see `npurt.delta.STATE_INTEGERS`.  Raises `read`'s errors.
        """
        return self.read(state, sequence)

    def write_exact(self, state: Tensor, sequence: int, values: Array) -> bool:
        """Set a state to what `read_exact` returned; return False if it was rounded."""
        integers = values.dtype == np.int32
        self.write(state, sequence, state_values(values) if integers else values)
        return not integers

    def run_into(
        self, values: Mapping[str, Array], rows: Rows, out: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Do as `run` does; results called as arrays in *out* may be written there."""
        del out
        return self.run(values, rows)

    # --- Going back -----------------------------------------------------------------------------

    def reach(self, sequence: int, length: int) -> int:
        """Return the largest number of positions, at most *length*, that `rewind` can keep."""
        return length if self.rewinds or not recurrent(self.part) else 0

    def rewind(self, sequence: int, length: int) -> None:  # noqa: B027
        """Keep the first *length* positions, which `reach` returned.

        Here it does nothing: keys and values of later positions are overwritten.
        """

    def checkpoint(self, sequence: int) -> Any:
        """Return a copy of the recurrent states, which cannot be truncated as keys and values can.

        Only this segment knows its form.
        """
        return {t.name: self.read(t, sequence) for t in recurrent(self.part)}

    def restore(self, sequence: int, checkpoint: Any) -> None:
        """Go back to what `checkpoint` returned."""
        for tensor in recurrent(self.part):
            self.write(tensor, sequence, checkpoint[tensor.name])

    @abc.abstractmethod
    def forget(self, sequence: int) -> None:
        """Drop all states of a sequence."""

    @abc.abstractmethod
    def counters(self) -> Iterable[Counter]:
        """Return what the ops did so far."""

    def verify(self, sampler: Sampler) -> None:  # noqa: B027
        """Have products checked that *sampler* chooses.  Here, none are."""

    def events(self) -> list[str]:
        """Return what reports should say since the last call, a sentence each."""
        return []

    def close(self) -> None:  # noqa: B027
        """Release the weights and states.  A second call does nothing."""


@runtime_checkable
class Shifts(Protocol):
    """A segment that can forget positions in the middle, if *shifts* says so."""

    shifts: bool

    def shift(self, sequence: int, keep: int, drop: int) -> None:
        """Forget *drop* positions after the first *keep*; move the later ones down."""


class Guard:
    """Refuses what a segment was not compiled for, before anything changes.  All devices use it.

    Attributes:
        closed: The segment was closed.
    """

    def __init__(self, part: Graph, limits: Limits) -> None:
        self.closed = False
        self._part, self._limits = part, limits
        self._lengths: dict[int, int] = {}  # positions of each sequence that has states
        self._states = set(part.tensors(Kind.STATE))
        self._has_positions = any(POSITIONS in tensor.shape for tensor in self._states)
        inputs = part.given | {tensor.name for tensor in part.tensors(Kind.INPUT)}
        self._inputs = {t.name: t for op in part.ops for t in op.reads if t.name in inputs}
        self._indexed: dict[str, list[Tensor]] = {}  # weights whose rows or matrices it chooses
        for op in part.ops:
            if isinstance(op, ops.Embedding):
                self._indexed.setdefault(op.tokens.name, []).append(op.weight)
            elif isinstance(op, ops.ExpertMatMul):
                self._indexed.setdefault(op.experts.name, []).append(op.weight)

    def begin_run(self, values: Mapping[str, Array], rows: Rows) -> Sequence[Span]:
        """Check the arguments of `Segment.run`; return the rows of each sequence.

        Raises:
            LayoutError: They do not fit.
        """
        spans = rows.by_sequence()
        self._require_room([span.sequence for span in spans])
        self._require_rows(rows, spans)
        for span in spans:
            length = self._lengths.get(span.sequence, 0)
            if self._has_positions and span.first > length:
                raise LayoutError(
                    f"sequence {span.sequence} has {length} positions, not {span.first}",
                    remedy="run the rows of a sequence in order, without a gap",
                )
        if not self._inputs.keys() <= values.keys():
            missing = sorted(self._inputs.keys() - values.keys())
            raise LayoutError(
                f"the part {self._part.name} is not given {', '.join(missing)}",
                remedy="pass an array for each of part.given",
            )
        for name, tensor in self._inputs.items():
            count = int(rows.wanted.sum()) if tensor.shape[0] == SELECTED else len(rows)
            self._require_input(tensor, values[name], count)
        return spans

    def end_run(self, rows: Rows) -> None:
        """Record that a run succeeded."""
        for span in rows.by_sequence():
            self._lengths[span.sequence] = span.end

    def begin_read(self, state: Tensor, sequence: int) -> None:
        """Check the arguments of `Segment.read`; the sequence has states from here on.

        Raises:
            LayoutError: They do not fit.
        """
        self._require_room([sequence])
        if state not in self._states:
            raise LayoutError(
                f"{state.name} is no state of {self._part.name}", remedy="ask its own segment"
            )
        self._lengths.setdefault(sequence, 0)

    def begin_write(self, state: Tensor, sequence: int, values: Array) -> None:
        """Check the arguments of `Segment.write`, and record that it sets the state.

        Raises:
            LayoutError: They do not fit.
        """
        self.begin_read(state, sequence)
        most, given = self._limits.positions, values.shape
        integers = values.dtype == np.int32 and len(given) == 3 and POSITIONS not in state.shape
        if integers:  # see `npurt.delta.STATE_INTEGERS`
            given = (*given[:-1], given[-1] - 2)
        shape = [
            min(size, most) if dim == POSITIONS else dim.size
            for dim, size in zip(state.shape, given, strict=False)
        ]
        wrong_shape = len(state.shape) != values.ndim or tuple(shape) != given
        if wrong_shape or (values.dtype.kind != "f" and not integers):
            raise LayoutError(
                f"{values.dtype} {values.shape} is not {state} with {most} positions at most",
                remedy="write what was read, or compile with more positions",
            )
        if POSITIONS in state.shape:
            self._lengths[sequence] = len(values)

    def rewind(self, sequence: int, length: int) -> None:
        """Record that a sequence keeps its first *length* positions."""
        self._lengths[sequence] = min(length, self._lengths.get(sequence, 0))

    def forget(self, sequence: int) -> None:
        """Record that the states of a sequence are dropped."""
        self._lengths.pop(sequence, None)

    def _require_room(self, sequences: Iterable[int]) -> None:
        if self.closed:
            raise LayoutError(f"{self._part.name} was closed", remedy="compile the part again")
        count, most = len(self._lengths.keys() | set(sequences)), self._limits.sequences
        if count > most:
            raise LayoutError(
                f"{count} sequences do not fit a segment for {most}",
                remedy="forget a sequence first, or compile with larger limits",
            )

    def _require_rows(self, rows: Rows, spans: Sequence[Span]) -> None:
        limits = self._limits
        first = min((span.first for span in spans), default=0)
        last = max((span.end for span in spans), default=0) - 1
        if not 0 < len(rows) <= limits.rows or first < 0 or last >= limits.positions:
            raise LayoutError(
                f"{len(rows)} rows at positions from {first} to {last} do not fit a segment for "
                f"{limits.rows} rows and {limits.positions} positions",
                remedy="pass fewer rows, or compile with larger limits",
            )

    def _require_input(self, tensor: Tensor, array: Array, count: int) -> None:
        kinds = "iu" if tensor.dtype == "i32" else "f"
        if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
            raise LayoutError(
                f"{tensor.name} is {getattr(array, 'dtype', type(array))}, and not {tensor.dtype}",
                remedy="pass a numpy array; astype() converts one",
            )
        if array.shape[:1] != (count,) or array.size != count * tensor.row_elements:
            raise LayoutError(
                f"{tensor.name} is {array.shape}, and not {tensor} of {count} rows",
                remedy="pass one row for each row of the run that the tensor is about",
            )
        for weight in self._indexed.get(tensor.name, ()):
            size = weight.shape[0].size or 0
            wrong = array[(array < 0) | (array >= size)]
            if len(wrong):
                raise LayoutError(
                    f"there is no {tensor.name} {wrong[0]} in {weight.name}, which has {size}",
                    remedy=f"pass numbers from 0 to {size - 1}",
                )


@runtime_checkable
class Compiler(Protocol):
    """A device that runs parts of graphs."""

    @property
    def caps(self) -> Caps:
        """What it is."""

    def why_not_op(self, op: Op, limits: Limits) -> str | None:
        """Return None when the device can run *op*, else a sentence saying what rules it out."""

    def compile(self, part: Graph, weights: Weights, limits: Limits) -> Segment:
        """Make a segment of *part*; `why_not_op` has said None of each op.

        Raises:
            DeviceFull: There is not enough memory for its weights and states.
            DriverError: The device failed.
        """


def recurrent(part: Graph) -> list[Tensor]:
    """Return the states of *part* that have no axis of positions."""
    return [t for t in part.tensors(Kind.STATE) if POSITIONS not in t.shape]


def split(
    graph: Graph, owner: Callable[[Op], Any], kept: Iterable[str] = ()
) -> list[tuple[Any, Graph]]:
    """Cut *graph* into parts that have one owner each, few and large.

    Ops that do not need what another owner makes later go to the part before: the products of one
    input are together, and so are the rotations of what they make.

    Args:
        owner: Returns who runs an op.
        kept: Names of tensors that the caller wants besides the graph's outputs.

    Returns:
        Each owner with its part.
    """
    runs: list[tuple[Any, list[Op]]] = []
    left = [(op, owner(op)) for op in graph.ops]
    missing = {tensor.name for op in graph.ops for tensor in op.writes}
    while left:
        who, listed, later = left[0][1], list[Op](), list[tuple[Op, Any]]()
        for op, whose in left:
            if whose is who and missing.isdisjoint(t.name for t in op.reads):
                listed.append(op)
                missing -= {tensor.name for tensor in op.writes}
            else:
                later.append((op, whose))
        runs.append((who, listed))
        left = later
    wanted = set(kept) | {tensor.name for tensor in graph.tensors(Kind.OUTPUT)}
    parts = []
    for i, (who, listed) in enumerate(runs):
        made = {t.name for op in listed for t in op.writes}
        after = {t.name for _, others in runs[i + 1 :] for op in others for t in op.reads}
        given = {
            t.name
            for op in listed
            for t in op.reads
            if t.kind in (Kind.INPUT, Kind.ACTIVATION) and t.name not in made
        }
        name = graph.name if len(runs) == 1 else f"{graph.name}.{i}"
        parts.append(
            (
                who,
                Graph(name, tuple(listed), frozenset(given), frozenset(made & (after | wanted))),
            )
        )
    return parts
