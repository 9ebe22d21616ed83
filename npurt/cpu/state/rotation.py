"""Compute the tables that attention reads by position: rotary angles, and factors of queries.

Angles are computed in float64; the tables are float32.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from npurt.cpu.state.arrays import Rotation
from npurt.device.device import F32
from npurt.graph import ops
from npurt.graph.graph import Graph
from npurt.graph.meaning import rotations
from npurt.graph.ops import Pairing

F64 = npt.NDArray[np.float64]


def rotations_of(graph: Graph, table: Callable[[str], F64], positions: int) -> dict[str, Rotation]:
    """Return the rotary tables of each attention of a graph, by name of the attention.

    An attention without rotation has tables ``[positions, 0]``.

    Args:
        table: Returns the tensor of frequencies with the given name.
        positions: The number of rows of the tables.
    """
    makers = {tensor.name: op for op in graph.ops for tensor in op.writes}
    made: dict[tuple[str, float], tuple[F32, F32]] = {}
    nothing: F32 = np.empty((positions, 0), np.float32)
    found = {}
    for op in graph.ops:
        if not isinstance(op, ops.Attention | ops.EncoderAttention):
            continue
        rope = makers.get(op.k.name)
        found[op.name] = Rotation(nothing, nothing, known=op.k.name not in graph.given)
        if isinstance(rope, ops.Rope):
            key = rope.frequencies.name, rope.magnitude
            if key not in made:
                made[key] = rotations(table(key[0]), rope.magnitude, positions)
            found[op.name] = Rotation(*made[key], halves=rope.pairing is Pairing.HALVES)
    return found


def temperatures(temperature: tuple[float, int] | None, positions: int) -> F32 | None:
    """Return the factors of queries by position: see `npurt.graph.ops.Attention`."""
    if temperature is None:
        return None
    slope, length = temperature
    factors = 1 + slope * np.log1p(np.arange(positions) // length)
    return np.asarray(factors, np.float32)
