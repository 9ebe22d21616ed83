"""The interface of devices that run parts of a graph.

A device compiles ops of a graph, in order, into a segment, with packed weights and planned buffers.
A segment runs rows and owns the states of its ops.  It counts its work and raises `DriverError`
when its device fails; the caller reports the counts and handles the failure.
"""

import abc
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from npurt.device.delta import state_values
from npurt.device.device import Caps, Packed
from npurt.device.verify import Sampler
from npurt.errors import LayoutError, SettingError
from npurt.graph import ops
from npurt.graph.cost import cost
from npurt.graph.graph import Graph
from npurt.graph.ops import Op
from npurt.graph.roles import role
from npurt.graph.rows import Rows
from npurt.graph.tensor import POSITIONS, Kind, Tensor
from npurt.quant.tensor import QTensor

Array = npt.NDArray[Any]
RunForeign = Callable[[Mapping[str, Array], Rows], Mapping[str, Array]]
KV_DTYPES = {"f16": np.float16, "f32": np.float32}
NO_FOREIGN: Mapping[str, RunForeign] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest sizes that a segment has to support.

    Attributes:
        rows: Rows of one run.
        positions: Positions of one sequence.
        sequences: Sequences that have states at the same time.
        kv_dtype: Element type of cached keys and values, one of `KV_DTYPES`.
        kv_bytes: Bytes of keys and values for all sequences and layers of a segment with pages (see
            `Capacity`); None means enough for *sequences* times *positions*.

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
                    f"a segment cannot have {size} {name}",
                    remedy=f"use {name}=1 or more",
                )


@dataclass(frozen=True, slots=True)
class Capacity:
    """Counts of KV-cache pages, which sequences allocate as they grow and share after a fork.

    Attributes:
        page: Positions in a page; a page has the keys and values of all layers of the segment.
        free: Pages that no sequence uses.
        total: All pages.
        nbytes: Bytes of all pages.
    """

    page: int
    free: int
    total: int
    nbytes: int = 0

    def pages(self, length: int) -> int:
        """Return the number of pages for *length* positions of a sequence."""
        return -(-length // self.page)


class Weights(Protocol):
    """The source of a graph's weights and tables, by tensor name."""

    def quantised(self, name: str) -> QTensor:
        """Return a weight in the file's format: ``[N, K]``, or ``[E, N, K]`` for experts."""

    def values(self, name: str) -> Array:
        """Return a weight or a table as floats.

        Raises:
            ModelFormatError: The tensor contains NaN or infinity.
        """


@dataclass(slots=True)
class Counter:
    """Counts of the work of an op, or of a group of ops of one role.

    Attributes:
        op: The role, as in reports: ``attn_qkv``, ``norm``, ...
        tensor: Names of the weights; "" for an op without weights.
        shape: ``(N, K)`` of a product, else ().
        calls: Runs.
        rows: Rows over all runs.
        macs: Multiply-adds.
        nbytes: Bytes of weights read.
        seconds: Wall time; 0 if the device times only whole segments.
        verified: Results that were checked.
        failed: Checked results that were wrong.
        name: Name of the op in the graph; "" for a group of ops.
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
    name: str = ""

    @classmethod
    def of(cls, op: Op) -> "Counter":
        """Return a new counter for *op*, with all counts 0."""
        if not isinstance(op, ops.MatMul | ops.ExpertMatMul):
            return cls(role(op), name=op.name)
        n, k = op.weight.shape[-2:]
        tensor = op.weight.name.removesuffix(".weight")
        return cls(op.role, tensor, (n.size or 0, k.size or 0), name=op.name)

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
    """A part of a graph on one device.  Not thread-safe.

    Attributes:
        part: The ops.  Inputs are the tensors ``part.given``, results are ``part.wanted``.
        rewinds: True if `rewind` restores recurrent states, too.
        taps: Names of inner tensors that the next run returns, too, so that the caller can verify
            ops.  A segment that cannot return a tensor leaves it out.
    """

    part: Graph
    rewinds: bool = False
    taps: frozenset[str] = frozenset()

    @abc.abstractmethod
    def run(self, values: Mapping[str, Array], rows: Rows) -> dict[str, Array]:
        """Run all ops; return the tensors ``part.wanted`` by name, float32 ``[T, columns]``.

        Args:
            values: The tensors ``part.given`` by name.
            rows: Sequence and position of each row.

        Raises:
            LayoutError: *values* or *rows* do not fit the segment; nothing has changed.
            OutOfPages: The rows need more pages than are free (`capacity`); nothing has changed.
            DriverError: The device failed; the states of the sequences in *rows* are lost.
        """

    @abc.abstractmethod
    def read(self, state: Tensor, sequence: int) -> Array:
        """Return a copy of a state in its canonical form: shape and values as in the graph.

        Raises:
            LayoutError: The segment has no such state, no space for the sequence, or was closed.
            DriverError: The device failed.
        """

    @abc.abstractmethod
    def write(self, state: Tensor, sequence: int, values: Array) -> None:
        """Set a state to *values*, in the form that `read` returns.

        Raises:
            LayoutError: As in `read`, or *values* have another shape; nothing has changed.
        """

    def read_exact(self, state: Tensor, sequence: int) -> Array:
        """Return an exact copy of a state.  The errors are those of `read`.

        If the device stores the state of a delta net as integers, return the integers (see
        `npurt.device.delta.STATE_INTEGERS`), otherwise the result of `read`.
        """
        return self.read(state, sequence)

    def write_exact(self, state: Tensor, sequence: int, values: Array) -> bool:
        """Set a state to a result of `read_exact`; return False if this device rounded it."""
        integers = values.dtype == np.int32
        self.write(state, sequence, state_values(values) if integers else values)
        return not integers

    def run_into(
        self, values: Mapping[str, Array], rows: Rows, out: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Run all ops like `run`; a result may be written to the array of its name in *out*."""
        del out
        return self.run(values, rows)

    def packed_weight(self, op: ops.MatMul) -> Packed | None:
        """Return the packed weight of *op*, whose error bounds verify the product; None if unknown.

        Without it, products are verified less strictly: see `npurt.runtime.execute.checks`.
        """
        del op
        return None

    # --- Rewind ---------------------------------------------------------------------------------

    def reach(self, sequence: int, length: int) -> int:
        """Return the largest number of positions, at most *length*, that `rewind` can keep."""
        return length if self.rewinds or not recurrent(self.part) else 0

    def rewind(self, sequence: int, length: int) -> None:  # noqa: B027
        """Keep the first *length* positions, a result of `reach`, and free the other pages.

        This implementation does nothing, because later runs overwrite keys and values.  All
        implementations do nothing for a sequence without states and in a closed segment.
        """

    def checkpoint(self, sequence: int) -> Any:
        """Return an exact copy of the recurrent states, which `rewind` may be unable to restore.

        The format of the copy is private to the segment.
        """
        return {t.name: self.read_exact(t, sequence) for t in recurrent(self.part)}

    def restore(self, sequence: int, checkpoint: Any) -> None:
        """Set the recurrent states to *checkpoint*, a result of `checkpoint`."""
        for tensor in recurrent(self.part):
            self.write_exact(tensor, sequence, checkpoint[tensor.name])

    # --- Several sequences ----------------------------------------------------------------------

    def fork(self, source: int, target: int, length: int) -> None:
        """Replace the states of *target* by the first *length* positions of *source*.

        Recurrent states are copied unchanged.  If *source* has more than *length* positions, the
        caller must `restore` a checkpoint of *length* positions to *target* before it runs.

        Raises:
            LayoutError: *source* has fewer positions, *target* is *source*, or the segment has no
                space for another sequence; nothing has changed.
            OutOfPages: No page is free for the positions that cannot be shared; nothing has
                changed.
            DriverError: The device failed.
        """
        saved = {t: self.read(t, source) for t in positional(self.part)}
        require_fork(source, target, length, min(map(len, saved.values()), default=length))
        moving = self.checkpoint(source) if recurrent(self.part) else None
        self.forget(target)
        for state, values in saved.items():
            self.write(state, target, values[:length])
        if moving is not None:
            self.restore(target, moving)

    def capacity(self, without: Collection[int] = ()) -> Capacity | None:
        """Return the counts of pages, or None if the memory of each sequence is fixed.

        Args:
            without: Sequences whose unshared pages count as free.
        """
        return None

    @abc.abstractmethod
    def forget(self, sequence: int) -> None:
        """Drop all states of a sequence, and free its pages."""

    @abc.abstractmethod
    def counters(self) -> Iterable[Counter]:
        """Return the counters of the ops."""

    def verify(self, sampler: Sampler) -> None:  # noqa: B027
        """Verify the results of `verifies` that *sampler* chooses, from now on."""

    def verifies(self, op: Op) -> bool:
        """Return whether the segment itself verifies *op*; else the caller does, from `taps`."""
        del op
        return False

    def events(self) -> list[str]:
        """Return the events since the last call, one sentence each, for reports."""
        return []

    def close(self) -> None:  # noqa: B027
        """Release the weights and states.  A second call does nothing."""


@runtime_checkable
class Shifts(Protocol):
    """A segment that can remove positions from the middle of a sequence, if *shifts* is True."""

    shifts: bool

    def shift(self, sequence: int, keep: int, drop: int) -> None:
        """Remove *drop* positions after the first *keep*; subtract *drop* from later positions."""


@runtime_checkable
class Compiler(Protocol):
    """A device that runs parts of graphs."""

    @property
    def caps(self) -> Caps:
        """The device's name and description."""

    def why_not_op(self, op: Op, limits: Limits) -> str | None:
        """Return None when the device can run *op*, else a sentence saying what rules it out."""

    def compile(self, part: Graph, weights: Weights, limits: Limits) -> Segment:
        """Compile *part*, whose ops `why_not_op` all accepts, into a segment.

        Raises:
            DeviceFull: The device has too little memory for the weights and states.
            DriverError: The device failed.
        """


@dataclass(frozen=True, slots=True)
class Fit:
    """What a part takes on a device, and what it saves.

    Attributes:
        nbytes: Bytes of its weights and states on the device.
        seconds: Time that it saves for a prompt and its completion; 0 if unknown.
    """

    nbytes: int
    seconds: float = 0.0

    @property
    def worth(self) -> float:
        """Seconds that the part saves for each byte."""
        return self.seconds / self.nbytes if self.nbytes else 0.0


@runtime_checkable
class Fits(Protocol):
    """A device that knows the size of a part before it compiles the part."""

    def fit(self, part: Graph, weights: Weights, limits: Limits) -> Fit:
        """Return what *part* would take on the device."""


@runtime_checkable
class Reopens(Protocol):
    """A device that has to be opened again after a loss, before it compiles."""

    def reopen(self) -> None:
        """Open the device again; its segments are closed.

        Raises:
            DeviceNotFound: The device is gone.
            DriverError: The device failed again.
        """


@runtime_checkable
class ComputesOnHost(Protocol):
    """A device whose segments the host can compute with the same bits (docs/decisions/039)."""

    def compile_on_host(self, part: Graph, weights: Weights, limits: Limits) -> Segment:
        """Return a segment on the host, in this device's arithmetic.

        The device may be lost: it is not used.
        """


@runtime_checkable
class Host(Protocol):
    """A device that runs graphs with parts on other devices: the CPU and numpy."""

    def compile(
        self,
        part: Graph,
        weights: Weights,
        limits: Limits,
        foreign: Mapping[str, RunForeign] = NO_FOREIGN,
    ) -> Segment:
        """Compile *part*, whose ops `npurt.graph.ops.Foreign` call functions.

        Args:
            foreign: For the name of each of these ops, a function that takes the values of its
                inputs and the rows of the run, and returns the values of its outputs.

        Raises:
            DeviceFull: The device has too little memory.
        """


def require_fork(source: int, target: int, length: int, have: int) -> None:
    """Check a fork of *length* positions of *source*, which has *have* positions, to *target*.

    Raises:
        LayoutError: *source* is *target*, or has fewer than *length* positions.
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
    """Return the states of *part* that have no axis of positions: recurrent states."""
    return [t for t in part.tensors(Kind.STATE) if POSITIONS not in t.shape]


def positional(part: Graph) -> list[Tensor]:
    """Return the states of *part* that have an axis of positions: keys and values."""
    return [t for t in part.tensors(Kind.STATE) if POSITIONS in t.shape]


def split(
    graph: Graph, owner: Callable[[Op], Any], extra_outputs: Iterable[str] = ()
) -> list[tuple[Any, Graph]]:
    """Split *graph* into as few parts as possible, each with one owner.

    An op joins the earliest part of its owner that follows all parts of other owners that compute
    its inputs.  So all products of one input are in one part, together with the rotations of their
    results.

    Args:
        owner: Returns the owner of an op, such as a device.
        extra_outputs: Names of tensors that the caller needs besides the graph's outputs.

    Returns:
        Pairs of an owner and a part, in the order of execution.
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
    wanted = set(extra_outputs) | {tensor.name for tensor in graph.tensors(Kind.OUTPUT)}
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
