"""A graph's weights, states and values in memory, for `npurt.cpu.lowering.lower`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from npurt.cpu.pool.checked import NamedWeight
from npurt.cpu.state.arrays import KV, Recurrence
from npurt.device.device import F32


@dataclass(frozen=True, slots=True)
class Bound:
    """A graph's weights and states in memory.

    Attributes:
        weights: Matrices of products by tensor name.
        vectors: Other weights by tensor name.
        kv: KV caches by name of the attention.
        recurrent: States of delta nets by name of the delta net.
        rows: The maximum number of rows in a run.
        convolved: Stored inputs ``[slots, capacity, C]`` of short convolutions, by name of the
            convolution.
    """

    weights: Mapping[str, NamedWeight]
    vectors: Mapping[str, F32]
    kv: Mapping[str, KV]
    recurrent: Mapping[str, Recurrence]
    rows: int
    convolved: Mapping[str, F32] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Columns:
    """The place of a tensor: *count* columns of a buffer from *start* on."""

    buffer: F32
    start: int
    count: int

    def overlaps(self, other: "Columns") -> bool:
        """Return whether both places have a column of the same buffer in common."""
        return (
            self.buffer is other.buffer
            and self.start < other.start + other.count
            and other.start < self.start + self.count
        )

    @property
    def is_whole(self) -> bool:
        """True if the buffer has no other columns."""
        return bool(self.count == self.buffer.shape[1])

    @property
    def view(self) -> F32:
        """A view of the columns."""
        return self.buffer[:, self.start : self.start + self.count]
