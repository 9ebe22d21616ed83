"""The contract of devices that run parts of a graph.

A device compiles ops of a graph, in order, into a segment: weights laid out, buffers planned.  A
segment runs rows and owns the states of its ops.  Whoever calls it keeps the accounts: a segment
returns what it counted, and raises `DriverError` when its device fails.
"""

import abc
from collections.abc import Callable, Collection, Iterable, Mapping
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
from npurt.graph.rows import Rows
from npurt.graph.tensor import POSITIONS, Kind, Tensor
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
        kv_bytes: Bytes of keys and values that a segment with pages (see `Room`) has for all its
            sequences, over all its layers; None: as many as *sequences* of *positions* take.

    Raises:
        SettingError: A size is below 1, or there is no such element type.
    """

    rows: int
    positions: int
    sequences: int = 1
    kv_dtype: str = "f16"
    kv_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.kv_dtype not in KV_DTYPES:
            raise SettingError(
                f"kv_dtype {self.kv_dtype!r} is not an element type of keys and values",
                remedy=f"use {' or '.join(map(repr, KV_DTYPES))}",
            )
        for name in ("rows", "positions", "sequences", "kv_bytes"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise SettingError(
                    f"a segment cannot be ready for {size} {name}",
                    remedy=f"use {name}=1 or more",
                )


@dataclass(frozen=True, slots=True)
class Room:
    """Pages of keys and values: memory that sequences take as they grow, and share after a fork.

    A page has so many positions of every layer of the segment.

    Attributes:
        page: Positions of a page.
        free: Pages that no sequence has.
        total: All pages.
        nbytes: Bytes of all pages.
    """

    page: int
    free: int
    total: int
    nbytes: int = 0

    def pages(self, length: int) -> int:
        """Return how many pages *length* positions of a sequence take."""
        return -(-length // self.page)


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
        """Add the counts of another counter of the same op."""
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
            OutOfPages: The rows need more pages than are free (`room`); nothing has changed.
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
        """Return an exact copy of a state.

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
        """Keep the first *length* positions, which `reach` returned; give other pages back.

        Here it does nothing: keys and values of later positions are overwritten.  It also does
        nothing to a sequence without states, as in a closed segment.
        """

    def checkpoint(self, sequence: int) -> Any:
        """Return an exact copy of the recurrent states, which have no positions to truncate.

        Only this segment knows its form.
        """
        return {t.name: self.read_exact(t, sequence) for t in recurrent(self.part)}

    def restore(self, sequence: int, checkpoint: Any) -> None:
        """Go back to what `checkpoint` returned."""
        for tensor in recurrent(self.part):
            self.write_exact(tensor, sequence, checkpoint[tensor.name])

    # --- Several sequences ----------------------------------------------------------------------

    def fork(self, source: int, target: int, length: int) -> None:
        """Let *target* begin with the first *length* positions of *source*, and no others.

        Recurrent states are copied as they are.  Where *source* has more than *length* positions,
        `restore` a checkpoint of *length* positions to *target* before it runs.  What *target* had
        is forgotten.

        Raises:
            LayoutError: *source* has fewer positions, *target* is *source*, or there is no room for
                another sequence; nothing has changed.
            OutOfPages: There is no page for what cannot be shared; nothing has changed.
            DriverError: The device failed.
        """
        kept = {t: self.read(t, source) for t in positional(self.part)}
        require_fork(source, target, length, min(map(len, kept.values()), default=length))
        moving = self.checkpoint(source) if recurrent(self.part) else None
        self.forget(target)
        for state, values in kept.items():
            self.write(state, target, values[:length])
        if moving is not None:
            self.restore(target, moving)

    def room(self, without: Collection[int] = ()) -> Room | None:
        """Return how many pages there are; None where each sequence has memory of its own.

        Args:
            without: Pages that only these sequences have count as free.
        """
        return None

    @abc.abstractmethod
    def forget(self, sequence: int) -> None:
        """Drop all states of a sequence, and give its pages back."""

    @abc.abstractmethod
    def counters(self) -> Iterable[Counter]:
        """Return the counts of the ops so far."""

    def verify(self, sampler: Sampler) -> None:  # noqa: B027
        """Have products checked that *sampler* chooses.  Here, none are."""

    def events(self) -> list[str]:
        """Return the events since the last call that reports show, a sentence each."""
        return []

    def close(self) -> None:  # noqa: B027
        """Release the weights and states.  A second call does nothing."""


@runtime_checkable
class Shifts(Protocol):
    """A segment that can forget positions in the middle, if *shifts* says so."""

    shifts: bool

    def shift(self, sequence: int, keep: int, drop: int) -> None:
        """Forget *drop* positions after the first *keep*; move the later ones down."""


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


def require_fork(source: int, target: int, length: int, have: int) -> None:
    """Check that *target* can begin with *length* of the *have* positions of *source*.

    Raises:
        LayoutError: It cannot.
    """
    if source == target:
        raise LayoutError(
            f"sequence {source} cannot be forked to itself",
            remedy="name a sequence without states as the target",
        )
    if not 0 <= length <= have:
        raise LayoutError(
            f"sequence {source} has {have} positions, not {length}",
            remedy="fork no more positions than the sequence has run",
        )


def recurrent(part: Graph) -> list[Tensor]:
    """Return the states of *part* that have no axis of positions."""
    return [t for t in part.tensors(Kind.STATE) if POSITIONS not in t.shape]


def positional(part: Graph) -> list[Tensor]:
    """Return the states of *part* that have an axis of positions: keys and values."""
    return [t for t in part.tensors(Kind.STATE) if POSITIONS in t.shape]


def split(
    graph: Graph, owner: Callable[[Op], Any], kept: Iterable[str] = ()
) -> list[tuple[Any, Graph]]:
    """Cut *graph* into parts that have one owner each, few and large.

    An op joins the earlier part of its owner, unless it needs a result that another owner computes
    after that part.  So products of one input are in one part, and the rotations of their results.

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
