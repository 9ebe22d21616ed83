"""The arrays of an op that has states: caches of keys and values, rotary tables, delta nets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu.state.slots import Slots
from npurt.device import F32

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotary tables of an attention by position.

    Attributes:
        halves: Pairs of elements are (i, i + rotated / 2), not (2i, 2i + 1).
        known: Whether the rotation of the keys is known: it is an op of the same part, or there is
            none.  False if another part made the keys.
    """

    cos: F32  # [P, rotated / 2]; rotated is 0 where nothing rotates
    sin: F32
    halves: bool = False
    known: bool = True


@dataclass(frozen=True, slots=True)
class KV:
    """The KV caches of one layer (`npurt.cpu.state.kv`), and the rotary tables of positions."""

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
    control: npt.NDArray[np.int32]  # [slots, 3]: see `npurt.cpu.pool.program.Program.delta`
