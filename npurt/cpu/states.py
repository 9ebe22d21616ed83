"""The states of one sequence, as the CPU's programs and numpy keep them."""

from collections.abc import Iterable, Mapping

import numpy as np

from npurt.cpu import kv
from npurt.cpu.bound import KV, Rotation
from npurt.cpu.convolved import Convolved
from npurt.cpu.recurrent import Recurrent, Replay
from npurt.delta import state_values
from npurt.device import F32
from npurt.errors import LayoutError
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.state import States, by_head, by_position
from npurt.graph.tensor import POSITIONS, Kind, Tensor
from npurt.segment import KV_DTYPES, Array, Limits, recurrent


class SequenceStates:
    """What the ops of a part remember of one sequence.

    Attributes:
        kv: By name of the attention.
        recurrent: By name of the delta net.
        convolved: By name of the short convolution, without those of delta nets.
        others: States of ops that numpy runs.
        length: Positions seen.
    """

    def __init__(
        self,
        part: Graph,
        limits: Limits,
        rotations: Mapping[str, Rotation],
        temperatures: Mapping[str, F32 | None],
    ) -> None:
        self.kv: dict[str, KV] = {}
        self.length = 0
        self._keys: dict[str, KV] = {}  # by name of the state
        self._values: dict[str, KV] = {}
        self._restored: dict[str, Array] = {}  # of convolutions: until a position is known
        self._moved = False  # states were written: until a position is known
        self._in_numpy: set[str] = set()
        self._recurrent = {tensor.name for tensor in recurrent(part)}
        dtypes = {t.name: limits.kv_dtype for t in part.tensors(Kind.STATE) if POSITIONS in t.shape}
        self.others = States(part, dtypes=dtypes)
        for op in part.ops:
            if isinstance(op, ops.Attention):
                memory = kv.allocate(op.kv_heads, limits.positions, op.q.columns // op.heads,
                                     KV_DTYPES[limits.kv_dtype])  # fmt: skip
                held = KV(*memory, rotations[op.name], temperatures[op.name])
                self.kv[op.name] = self._keys[op.keys.name] = self._values[op.values.name] = held
        nets = _nets(part)
        convolutions = [op for op in part.ops if isinstance(op, ops.ShortConv)]
        deltas = Recurrent((nets[op.name], op) for op in convolutions if op.name in nets)
        others = Convolved(op for op in convolutions if op.name not in nets)
        self._sequential: list[Recurrent | Convolved] = [s for s in (deltas, others) if s.kept]
        self.recurrent, self.convolved = deltas.recurrences(), others.kept
        self._nets = {net.state.name: deltas.states[net.name] for net in nets.values()}
        self._rings: dict[str, F32] = {}  # token t in row t % their number
        for op in convolutions:
            net = nets.get(op.name)
            self._rings[op.state.name] = deltas.kept[net.name] if net else others.kept[op.name]

    def leave(self, states: Iterable[Tensor]) -> None:
        """Record that numpy computes the ops of *states*, and keeps these states."""
        self._in_numpy |= {tensor.name for tensor in states}

    # --- Going forward and back -----------------------------------------------------------------

    @property
    def rewinds(self) -> bool:
        """Whether `rewind` takes back all states: numpy's have no rollback."""
        return self._in_numpy.isdisjoint(self._recurrent)

    @property
    def shifts(self) -> bool:
        """Whether `shift` can forget positions in the middle."""
        rotated = all(held.rotation.known for held in self.kv.values())
        return rotated and not self._sequential and not self._in_numpy

    def require(self, position: int) -> None:
        """Check that a run can begin at *position*.

        Raises:
            LayoutError: The states are those of another position.
        """
        if not self._moved and any(each.at != position for each in self._sequential):
            raise LayoutError(
                f"a sequence has {self.length} positions, not {position}",
                remedy="run the rows of a sequence in order, without a gap",
            )

    def begin(self, position: int, rows: int) -> None:
        """Prepare for a run of *rows* rows from *position* on; `end` completes it."""
        if self._moved:
            for name, kept in self._restored.items():
                ring = self._rings[name]
                ring[np.arange(position - len(kept), position) % len(ring), : kept.shape[1]] = kept
            self._restored.clear()
            self._moved = False
            for each in self._sequential:
                each.restored(position)
        for each in self._sequential:
            each.begin(position, rows)

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

    def rewind(self, length: int, replay: Replay, most: int) -> None:
        """Keep the first *length* positions; `reach` has returned that number."""
        if length == 0:
            self._restored.clear()
            self._moved = False
        for each in self._sequential:
            each.rewind(length, replay, most)
        self.length = min(length, self.length)

    def shift(self, keep: int, drop: int) -> None:
        """Forget *drop* positions after the first *keep*."""
        for held in self.kv.values():
            table = held.rotation
            kv.shift(held.keys, held.values, table.cos, table.sin, halves=table.halves,
                     keep=keep, drop=drop, end=self.length)  # fmt: skip
        self.length -= drop

    # --- What they are --------------------------------------------------------------------------

    def read(self, state: Tensor, sequence: int, *, exact: bool = False) -> Array:
        """Return a copy of a state in the graph's form, or *exact*: see `Segment.read_exact`."""
        name = state.name
        if name in self._in_numpy:
            return np.array(self.others.of(sequence)[name])
        if name in self._keys:
            return by_position(kv.read_keys(self._keys[name].keys, self.length))
        if name in self._values:
            return by_position(self._values[name].values[:, : self.length])
        if name in self._nets:
            return self._nets[name].exact()[0] if exact else np.array(self._nets[name].read()[0])
        if name in self._restored:
            return self._restored[name].copy()
        count, columns = (dim.size or 0 for dim in state.shape)
        rows, ring = np.arange(self.length - count, self.length), self._rings[name]
        kept: Array = np.array(ring[rows % len(ring), :columns])
        kept[rows < 0] = 0
        return kept

    def write(self, state: Tensor, sequence: int, values: Array) -> bool:
        """Set a state to *values*, as `read` returned them; return False if they were rounded."""
        integers = values.dtype == np.int32
        name = state.name
        if POSITIONS in state.shape:
            self.length = len(values)
        else:
            self._moved = True
        if name in self._in_numpy:
            held = self.others.of(sequence)
            held[name] = (state_values(values) if integers else values).astype(held[name].dtype)
            return not integers
        if name in self._nets:
            return self._nets[name].restore(values[None])
        if name in self._keys:
            keys = self._keys[name].keys
            kv.write_keys(keys, by_head(values, len(keys)))
        elif name in self._values:
            held_values = self._values[name].values
            held_values[:, : len(values)] = by_head(values, len(held_values))
        else:
            self._restored[name] = values.astype(np.float32)
        return True

    def clear(self, sequence: int) -> None:
        """Forget everything."""
        self.length = 0
        self._restored.clear()
        self._moved = False
        self.others.forget(sequence)
        for each in self._sequential:
            each.clear()


def _nets(part: Graph) -> dict[str, ops.GatedDeltaNet]:
    """Return the delta net after each short convolution, by that one's name."""
    makers = {t.name: op for op in part.ops for t in op.writes}
    found = {}
    for op in part.ops:
        if isinstance(op, ops.GatedDeltaNet):
            split = makers.get(op.v.name)
            conv = makers.get(split.x.name) if isinstance(split, ops.Split) else None
            if isinstance(conv, ops.ShortConv):
                found[conv.name] = op
    return found
