"""Where a graph's weights, states and values are in memory, for `npurt.cpu.lowering.lower`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from npurt.cpu.pool.checked import Weight
from npurt.cpu.state.arrays import KV, Recurrence
from npurt.device import F32


@dataclass(frozen=True, slots=True)
class Bound:
    """What a graph's weights and states are in memory.

    Attributes:
        weights: Matrices of products by name of the tensor.
        vectors: Other weights by name of the tensor.
        kv: By name of the attention.
        recurrent: By name of the delta net.
        convolved: What each short convolution keeps, ``[slots, capacity, C]``, by its name.
        rows: The most rows of a run.
    """

    weights: Mapping[str, Weight]
    vectors: Mapping[str, F32]
    kv: Mapping[str, KV]
    recurrent: Mapping[str, Recurrence]
    rows: int
    convolved: Mapping[str, F32] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Columns:
    """A value: columns of a buffer from *start* on."""

    buffer: F32
    start: int
    count: int

    def overlaps(self, other: "Columns") -> bool:
        """Return whether they share a column of one buffer."""
        return (
            self.buffer is other.buffer
            and self.start < other.start + other.count
            and other.start < self.start + self.count
        )

    @property
    def is_whole(self) -> bool:
        """True when the buffer has no other columns."""
        return bool(self.count == self.buffer.shape[1])

    @property
    def view(self) -> F32:
        """The columns."""
        return self.buffer[:, self.start : self.start + self.count]
