"""Products of one input with weights of any sessions, in batches that are kept."""

import itertools
from collections.abc import Iterator, Sequence

from npurt.device import F32
from npurt.hexagon.device.batch import Batch
from npurt.hexagon.device.weights import HexagonPacked, Parts


def multiply(x: F32, weights: Sequence[HexagonPacked], outs: Sequence[F32]) -> None:
    """Write the products of x with all weights to *outs*; errors as `Batch.run`."""
    for batch, which in _parts(weights):
        if 0 < len(x) <= batch.rows:
            batch.run(x, outs[which])
            continue
        calls = max(1, -(-len(x) // batch.rows))
        step = max(1, -(-len(x) // calls))  # all as long, so that they use the same memory
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            batch.run(x[rows], [out[rows] for out in outs[which]])


def _parts(weights: Sequence[HexagonPacked]) -> Parts:
    """Return the batches for *weights*, kept with the first of them."""
    key = tuple([w.number for w in weights])
    known = weights[0].batches
    if key not in known:
        known[key] = list(_split(weights))
    return known[key]


def _split(weights: Sequence[HexagonPacked]) -> Iterator[tuple[Batch, slice]]:
    """Make a batch for each run of weights of one session and one kind of activations."""
    start = 0
    for (_, group), members in itertools.groupby(weights, lambda w: (id(w.memory), w.group)):
        run = list(members)
        end = start + len(run)
        yield Batch(run[0].memory, [w.weight for w in run], group), slice(start, end)
        start = end
