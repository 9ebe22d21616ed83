"""The arrays of ops with states: KV caches, rotary tables, states of delta nets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu.state.slots import Slots
from npurt.device.device import F32

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotary tables of an attention by position.

    Attributes:
        halves: True rotates the pairs (i, i + rotated / 2); False the pairs (2i, 2i + 1).
        known: False if another part of the graph computes the keys, so that their rotation is
            unknown; else True.
    """

    cos: F32  # [positions, rotated / 2]; rotated is 0 without rotation
    sin: F32  # [positions, rotated / 2]
    halves: bool = False
    known: bool = True


@dataclass(frozen=True, slots=True)
class KV:
    """The KV caches of one layer (`npurt.cpu.state.kv`), and its tables by position."""

    keys: Array
    values: Array
    rotation: Rotation
    temperature: F32 | None = None  # [positions]: factors of the queries


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The states of one gated delta net for all sequences, one slot per sequence."""

    slots: Sequence[Slots]
    array: F32  # [slots, copies, 1, H, W, W]: states on the host, the memory of `slots`
    inputs: F32  # [slots, capacity, C + 2 H]: last inputs of the convolution
    control: npt.NDArray[np.int32]  # [slots, 3]: see `npurt.cpu.pool.program.Program.delta`
