"""Store the states of sequences for the CPU's programs and for ops that run in numpy."""

import functools
from collections.abc import Iterable, Mapping

import numpy as np

from npurt.cpu.kernels import abi
from npurt.cpu.pool.table import TableSpan
from npurt.cpu.state import kv
from npurt.cpu.state.arrays import KV, Recurrence, Rotation
from npurt.cpu.state.convolved import Convolved, convolutions
from npurt.cpu.state.recurrent import Recurrent, Replay, recurrences
from npurt.cpu.state.slots import Slots
from npurt.device.delta import state_values
from npurt.device.device import F32
from npurt.device.pages import PageList, PagePool
from npurt.device.segment import KV_DTYPES, Array, Limits, positional, recurrent
from npurt.errors import LayoutError, SettingError
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.state import States, by_head, by_position
from npurt.graph.tensor import POSITIONS, Tensor


class Memory:
    """Memory for the states of all sequences of a part, committed on first access.

    Attributes:
        kv: KV caches by name of the attention.
        keys, values: KV caches by name of the state.
        recurrent: Memory of delta nets by name of the delta net.
        convolved: Inputs of short convolutions outside delta nets, by name of the convolution.
        inputs: The last inputs of all short convolutions, by name of the state; slots come first.
        nets: Names of delta nets by name of their state.
        others: States of ops that run in numpy.
        in_numpy: The names of the states in `others` that are in use.
        pages: The pages of keys and values, and their owners.
        kv_bytes: Bytes of all pages.

    Raises:
        SettingError: `Limits.kv_bytes` is too small for one page.
    """

    def __init__(
        self,
        part: Graph,
        limits: Limits,
        rotations: Mapping[str, Rotation],
        temperatures: Mapping[str, F32 | None],
    ) -> None:
        dtype, slots = KV_DTYPES[limits.kv_dtype], limits.sequences
        attentions = [op for op in part.ops if isinstance(op, ops.Attention)]
        sizes = [(op.kv_heads, op.q.columns // op.heads, dtype) for op in attentions]
        self.kv: dict[str, KV] = {}
        copy = functools.partial(_copy_page, self.kv)  # a bound method would make a cycle
        self.pages = PagePool(_page_count(limits, sum(kv.page_bytes(*s) for s in sizes)), copy)
        self.keys: dict[str, KV] = {}
        self.values: dict[str, KV] = {}
        for op, size in zip(attentions, sizes, strict=True):
            arrays = kv.allocate(self.pages.total, *size)
            held = KV(*arrays, rotations[op.name], temperatures[op.name])
            self.kv[op.name] = self.keys[op.keys.name] = self.values[op.values.name] = held
        self.kv_bytes = sum(held.keys.nbytes + held.values.nbytes for held in self.kv.values())
        nets = _nets(part)
        all_convolutions = [op for op in part.ops if isinstance(op, ops.ShortConv)]
        pairs = [(nets[op.name], op) for op in all_convolutions if op.name in nets]
        self.recurrent: dict[str, Recurrence] = recurrences(pairs, slots)
        self.nets = {net.state.name: net.name for net, _ in pairs}
        alone = [op for op in all_convolutions if op.name not in nets]
        self.convolved = convolutions(alone, slots)
        self.inputs = {op.state.name: self.recurrent[net.name].inputs for net, op in pairs}
        self.inputs |= {op.state.name: self.convolved[op.name] for op in alone}
        self.others = States(part, dtypes={t.name: limits.kv_dtype for t in positional(part)})
        self.in_numpy: set[str] = set()
        self._recurrent_names = {tensor.name for tensor in recurrent(part)}
        self.positions = limits.positions

    def leave(self, states: Iterable[Tensor]) -> None:
        """Record that ops with these *states* run in numpy, so `others` stores the states."""
        self.in_numpy |= {tensor.name for tensor in states}

    @property
    def rewinds(self) -> bool:
        """Whether `SequenceStates.rewind` works: recurrent states in numpy have no rollback."""
        return self.in_numpy.isdisjoint(self._recurrent_names)

    @property
    def shifts(self) -> bool:
        """Whether `SequenceStates.shift` can remove positions in the middle."""
        rotated = all(held.rotation.known for held in self.kv.values())
        return rotated and not self.inputs and not self.in_numpy


class SequenceStates:
    """The states of one sequence, for all ops of a part.

    Args:
        memory: The states of all sequences.
        sequence: The number of the sequence.
        slot: The index of its recurrent states in the arrays of *memory*.

    Attributes:
        length: The number of positions evaluated.
        pages: The pages of its keys and values.
    """

    def __init__(self, memory: Memory, sequence: int, slot: int) -> None:
        self._memory, self._sequence, self.slot = memory, sequence, slot
        self.length = 0
        self.pages = PageList(memory.pages, memory.positions if memory.kv else 0)
        # Convolution states from `write`, by name, until `begin` gets their position.
        self._restored: dict[str, Array] = {}
        self._moved = False  # True from a `write` of recurrent states until the next `begin`
        self._sequential: list[Recurrent | Convolved] = []
        if memory.recurrent:
            self._sequential.append(Recurrent(memory.recurrent, slot))
        if memory.convolved:
            self._sequential.append(Convolved(memory.convolved, slot))

    # --- Going forward and back -----------------------------------------------------------------

    def require(self, position: int) -> None:
        """Check that a run can begin at *position*.

        Raises:
            LayoutError: The recurrent states are at another position.
        """
        for each in self._sequential:
            if each.at != position and not self._moved:
                raise LayoutError(
                    f"a sequence has {self.length} positions, not {position}",
                    remedy="run the rows of a sequence in order, without a gap",
                )

    def needed(self, position: int, rows: int) -> int:
        """Return how many free pages a run of *rows* rows from *position* on needs."""
        return self.pages.needed(position, position + rows) if self._memory.kv else 0

    def begin(self, position: int, rows: int) -> TableSpan:
        """Prepare for a run of *rows* rows from *position* on, and return the span of these rows.

        After the run, call `end`.

        Raises:
            OutOfPages: Too few pages are free; nothing has changed.
        """
        if self._memory.kv:
            self.pages.reserve(position, position + rows)
            self.length = min(self.length, position)
        if self._moved:
            for name, kept in self._restored.items():
                ring = self._memory.inputs[name][self.slot]
                ring[np.arange(position - len(kept), position) % len(ring), : kept.shape[1]] = kept
            self._restored.clear()
            self._moved = False
            for each in self._sequential:
                each.restored(position)
        for each in self._sequential:
            each.begin(position, rows)
        return TableSpan(rows, position, self.slot, self.pages.numbers if self._memory.kv else None)

    def end(self, position: int) -> None:
        """Record that a run ended at *position*."""
        for each in self._sequential:
            each.end(position)
        self.length = position

    def reach(self, length: int) -> int:
        """Return the largest number of positions, at most *length*, that `rewind` can keep."""
        if self._moved:
            return 0
        return min((each.reach(length) for each in self._sequential), default=length)

    def rewind(self, length: int, replay: Replay, maximum: int) -> None:
        """Drop all but the first *length* positions.

        Args:
            length: A number that `reach` returned.
            replay: Runs the delta nets alone over stored inputs.
            maximum: The maximum number of tokens per replay.
        """
        if length == 0:
            self._restored.clear()
            self._moved = False
        for each in self._sequential:
            each.rewind(length, replay, maximum)
        self.length = min(length, self.length)
        self.pages.truncate(self.length)

    def shift(self, keep: int, drop: int) -> None:
        """Remove the *drop* positions after the first *keep*.

        Raises:
            OutOfPages: A shared page must be copied, and no page is free; nothing has changed.
        """
        end = self.length
        self.pages.own(keep, end)
        for held in self._memory.kv.values():
            table = held.rotation
            kv.shift(held.keys, held.values, self.pages.numbers, table.cos, table.sin,
                     halves=table.halves, keep=keep, drop=drop, end=end)  # fmt: skip
        self.length -= drop
        self.pages.truncate(self.length)

    def require_fork(self, length: int, given_back: int) -> None:
        """Check that there are enough free pages to fork the first *length* positions.

        Args:
            given_back: The number of pages that the target sequence will free before the fork.

        Raises:
            OutOfPages: The last page is partly filled and must be copied, and no page is free.
        """
        if self._memory.kv and length % self._memory.pages.size and not given_back:
            self._memory.pages.require(1)

    def begin_as(self, other: "SequenceStates", length: int) -> None:
        """Copy the first *length* positions of *other* to this sequence, which has no states yet.

        Recurrent states are copied unchanged.  Call `require_fork` before.
        """
        if self._memory.kv:
            self.pages.begin_with(other.pages, length)
        for own, theirs in zip(self._sequential, other._sequential, strict=True):
            own.begin_as(theirs)  # type: ignore[arg-type]  # all sequences list the same types
        self._restored = {name: kept.copy() for name, kept in other._restored.items()}
        self._moved, self.length = other._moved, length
        memory = self._memory
        if memory.in_numpy:
            states = memory.others.copy(other._sequence)
            for name in memory.in_numpy - memory._recurrent_names:
                states[name] = states[name][:length]
            memory.others.restore(self._sequence, states)

    # --- Reading and writing --------------------------------------------------------------------

    def read(self, state: Tensor, *, exact: bool = False) -> Array:
        """Return a copy of a state in the graph's shape; for *exact*, see `Segment.read_exact`."""
        name, memory, pages = state.name, self._memory, self.pages.numbers
        if name in memory.in_numpy:
            return np.array(memory.others.of(self._sequence)[name])
        if name in memory.keys:
            return by_position(kv.read_keys(memory.keys[name].keys, pages, self.length))
        if name in memory.values:
            return by_position(kv.read_values(memory.values[name].values, pages, self.length))
        if name in memory.nets:
            net = self._net(name)
            return net.exact()[0] if exact else np.array(net.read()[0])
        if name in self._restored:
            return self._restored[name].copy()
        count, columns = (dim.size or 0 for dim in state.shape)
        rows, ring = np.arange(self.length - count, self.length), memory.inputs[name][self.slot]
        kept: Array = np.array(ring[rows % len(ring), :columns])
        kept[rows < 0] = 0
        return kept

    def write(self, state: Tensor, values: Array) -> bool:
        """Set a state to *values* that `read` returned; return False if they were rounded.

        Raises:
            OutOfPages: Too few pages are free for the keys or values; nothing has changed.
        """
        integers = values.dtype == np.int32
        name, memory = state.name, self._memory
        if POSITIONS in state.shape:
            if memory.kv:
                self.pages.own(0, len(values))
            self.length = len(values)
        else:
            self._moved = True
        pages = self.pages.numbers
        if name in memory.in_numpy:
            held = memory.others.of(self._sequence)
            held[name] = (state_values(values) if integers else values).astype(held[name].dtype)
            return not integers
        if name in memory.nets:
            return self._net(name).restore(values[None])
        if name in memory.keys:
            keys = memory.keys[name].keys
            kv.write_keys(keys, pages, by_head(values, len(keys)))
        elif name in memory.values:
            held_values = memory.values[name].values
            kv.write_values(held_values, pages, by_head(values, len(held_values)))
        else:
            self._restored[name] = values.astype(np.float32)
        return True

    def _net(self, state: str) -> Slots:
        """Return the sequence's slots of the delta net with the state named *state*."""
        return self._memory.recurrent[self._memory.nets[state]].slots[self.slot]

    def close(self) -> None:
        """Free the pages and the states in numpy; another sequence may now use the slot."""
        self.pages.truncate(0)
        self._memory.others.forget(self._sequence)


def _copy_page(caches: Mapping[str, KV], source: int, target: int, count: int) -> None:
    """Copy the first *count* positions of page *source* to page *target* in every KV cache."""
    for held in caches.values():
        kv.copy_page(held.keys, held.values, source, target, count)


def _page_count(limits: Limits, page_bytes: int) -> int:
    """Return the number of pages that *limits* allow.

    Args:
        page_bytes: Bytes of one page, summed over all attentions.
    """
    size = abi.limits().page
    if limits.kv_bytes is None or not page_bytes:
        return limits.sequences * -(-limits.positions // size)
    if limits.kv_bytes < page_bytes:
        raise SettingError(
            f"kv_bytes={limits.kv_bytes} is too small for a page of {size} positions",
            remedy=f"use kv_bytes={page_bytes} or more",
        )
    return limits.kv_bytes // page_bytes


def _nets(part: Graph) -> dict[str, ops.GatedDeltaNet]:
    """Return the delta net that follows each short convolution, by name of the convolution."""
    makers = {t.name: op for op in part.ops for t in op.writes}
    found = {}
    for op in part.ops:
        if isinstance(op, ops.GatedDeltaNet):
            split = makers.get(op.v.name)
            conv = makers.get(split.x.name) if isinstance(split, ops.Split) else None
            if isinstance(conv, ops.ShortConv):
                found[conv.name] = op
    return found
