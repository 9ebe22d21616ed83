"""Multiply one input by weights in any sessions, with prepared batches."""

import itertools
from collections.abc import Iterator, Sequence

from npurt.device.device import F32
from npurt.hexagon.device.batch import Batch
from npurt.hexagon.device.weights import HexagonPacked, Parts


def multiply(x: F32, weights: Sequence[HexagonPacked], outs: Sequence[F32]) -> None:
    """Write the products of x and *weights* to *outs*; errors as `Batch.run`."""
    for batch, which in _parts(weights):
        if 0 < len(x) <= batch.rows:
            batch.run(x, outs[which])
            continue
        calls = max(1, -(-len(x) // batch.rows))
        step = max(1, -(-len(x) // calls))  # equal parts of x use the same memory
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            batch.run(x[rows], [out[rows] for out in outs[which]])


def _parts(weights: Sequence[HexagonPacked]) -> Parts:
    """Return the batches for *weights*, which the first weight caches."""
    key = tuple([w.number for w in weights])
    known = weights[0].batches
    if key not in known:
        known[key] = list(_split(weights))
    return known[key]


def _split(weights: Sequence[HexagonPacked]) -> Iterator[tuple[Batch, slice]]:
    """Yield a batch for each run of consecutive weights with the same session and group size."""
    start = 0
    for (_, group), members in itertools.groupby(weights, lambda w: (id(w.memory), w.group)):
        run = list(members)
        end = start + len(run)
        yield Batch(run[0].memory, [w.weight for w in run], group), slice(start, end)
        start = end
