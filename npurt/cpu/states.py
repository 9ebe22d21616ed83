"""The states of one sequence, as the CPU's programs and numpy keep them."""

from collections.abc import Iterable, Mapping

import numpy as np

from npurt.cpu import kv
from npurt.cpu.bound import KV, Recurrence
from npurt.cpu.engine import empty
from npurt.cpu.slots import Slots
from npurt.device import F32
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.state import States
from npurt.graph.tensor import POSITIONS, Kind, Tensor
from npurt.segment import KV_DTYPES, Array, Limits

KEPT = 64  # rows that a convolution keeps besides those that it sees


class SequenceStates:
    """What the ops of a part remember of one sequence.

    Attributes:
        kv: By name of the attention.
        recurrent: By name of the delta net.
        convolved: By name of the short convolution.
        others: States of ops that numpy runs.
        length: Positions seen.
    """

    def __init__(
        self,
        part: Graph,
        limits: Limits,
        rotations: Mapping[str, tuple[F32, F32]],
        temperatures: Mapping[str, F32 | None],
    ) -> None:
        self.kv: dict[str, KV] = {}
        self.recurrent: dict[str, Recurrence] = {}
        self.convolved: dict[str, F32] = {}
        self.length = 0
        self._keys: dict[str, KV] = {}  # by name of the state
        self._values: dict[str, KV] = {}
        self._nets: dict[str, Slots] = {}
        self._rings: dict[str, F32] = {}  # token t in row t % their number
        self._restored: dict[str, Array] = {}  # of convolutions: until a position is known
        self._in_numpy: set[str] = set()
        dtypes = {t.name: limits.kv_dtype for t in part.tensors(Kind.STATE) if POSITIONS in t.shape}
        self.others = States(part, dtypes=dtypes)
        nets = _nets(part)
        for op in part.ops:
            if isinstance(op, ops.Attention):
                memory = kv.allocate(op.kv_heads, limits.positions, op.q.columns // op.heads,
                                     KV_DTYPES[limits.kv_dtype])  # fmt: skip
                held = KV(*memory, *rotations[op.name], temperatures[op.name])
                self.kv[op.name] = self._keys[op.keys.name] = self._values[op.values.name] = held
            elif isinstance(op, ops.ShortConv):
                net = nets.get(op.name)
                columns = op.x.columns + (2 * net.heads if net else 0)  # and its gates
                ring = empty(KEPT + op.weight.columns - 1, columns)
                self.convolved[op.name] = self._rings[op.state.name] = ring
                if net:
                    width = net.v.columns // net.heads
                    array = empty(net.heads, width * width).reshape(1, 1, -1, width, width)
                    slots = self._nets[net.state.name] = Slots(array)
                    control = np.array([0, -1, 0], np.int32)
                    self.recurrent[net.name] = Recurrence(slots, ring, control)

    def leave(self, states: Iterable[Tensor]) -> None:
        """Let numpy have *states*."""
        self._in_numpy |= {tensor.name for tensor in states}

    def begin(self, position: int) -> None:
        """Get ready for a run from *position* on."""
        for name, rows in self._restored.items():
            ring = self._rings[name]
            ring[np.arange(position - len(rows), position) % len(ring), : rows.shape[1]] = rows
        self._restored.clear()

    def read(self, state: Tensor, sequence: int) -> Array:
        """Return a copy of a state in the graph's form."""
        name = state.name
        if name in self._in_numpy:
            return np.array(self.others.of(sequence)[name])
        if name in self._keys:
            return _to_rows(kv.read_keys(self._keys[name].keys, self.length))
        if name in self._values:
            return _to_rows(self._values[name].values[:, : self.length])
        if name in self._nets:
            return np.array(self._nets[name].read()[0])
        if name in self._restored:
            return self._restored[name].copy()
        count, columns = (dim.size or 0 for dim in state.shape)
        rows, ring = np.arange(self.length - count, self.length), self._rings[name]
        kept: Array = np.array(ring[rows % len(ring), :columns])
        kept[rows < 0] = 0
        return kept

    def write(self, state: Tensor, sequence: int, values: Array) -> None:
        """Set a state to *values*."""
        name = state.name
        if POSITIONS in state.shape:
            self.length = len(values)
        if name in self._in_numpy:
            held = self.others.of(sequence)
            held[name] = values.astype(held[name].dtype)
        elif name in self._keys:
            kv.write_keys(self._keys[name].keys, _to_heads(values, self._keys[name]))
        elif name in self._values:
            held_values = self._values[name].values
            held_values[:, : len(values)] = _to_heads(values, self._values[name])
        elif name in self._nets:
            self._nets[name].array[0, 0] = values
        else:
            self._restored[name] = values.astype(np.float32)

    def clear(self, sequence: int) -> None:
        """Forget everything."""
        self.length = 0
        self._restored.clear()
        self.others.forget(sequence)
        for slots in self._nets.values():
            slots.clear()


def _to_rows(array: Array) -> Array:
    """Return ``[G, P, W]`` as ``[P, G * W]``, copied."""
    heads, length, width = array.shape
    return np.array(array.transpose(1, 0, 2), order="C").reshape(length, heads * width)


def _to_heads(array: Array, held: KV) -> Array:
    """Return ``[P, G * W]`` as ``[G, P, W]``."""
    heads, _, width = held.values.shape
    return array.reshape(len(array), heads, width).transpose(1, 0, 2)


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
