"""Where a graph's weights, states and values are in memory, for `npurt.cpu.lower`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu.checked import Weight
from npurt.cpu.slots import Slots
from npurt.device import F32

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotary tables of an attention by position.

    Attributes:
        halves: Pairs of elements are (i, i + rotated / 2), not (2i, 2i + 1).
        known: How keys rotate is known: it is an op of the same part, or they do not.
    """

    cos: F32  # [P, rotated / 2]; rotated is 0 where nothing rotates
    sin: F32
    halves: bool = False
    known: bool = True


@dataclass(frozen=True, slots=True)
class KV:
    """The KV caches of one layer (`npurt.cpu.kv`), and the rotary tables of positions."""

    keys: Array
    values: Array
    rotation: Rotation
    temperature: F32 | None = None  # [P]: factors of queries


@dataclass(frozen=True, slots=True)
class Recurrence:
    """What one gated delta net keeps from run to run, for the sequence in each slot."""

    slots: Sequence[Slots]
    array: F32  # [slots, copies, 1, H, W, W]: where the host has the states
    inputs: F32  # [slots, capacity, C + 2 H]: what the convolution saw last
    control: npt.NDArray[np.int32]  # [slots, 3]: see `npurt.cpu.program.Program.delta`


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
