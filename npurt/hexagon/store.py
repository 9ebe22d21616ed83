"""The memory of one session: weights, and the scratch that activations and results pass through."""

from collections.abc import Callable

from npurt.errors import DeviceFull
from npurt.hexagon.rpcmem import Arena, Slice, aligned
from npurt.hexagon.transport import Transport

SCRATCH_BYTES = 32 << 20  # activations and results of one batch
LEAST_BYTES = 32 << 20  # of the first block for weights; later ones double what there is,
MOST_BYTES = 256 << 20  # up to this: boards exist that cannot give a gigabyte in one piece
PROVEN_BYTES = 512 << 20  # no session is known to have less room: up to here nothing is measured


class Store:
    """One session and its blocks.

    Args:
        transport: The session.
        capacity: Returns how many bytes the session can map; asked when it matters.
    """

    def __init__(self, transport: Transport, capacity: Callable[[], int]) -> None:
        self.transport = transport
        self.scratch = transport.allocate(SCRATCH_BYTES)
        self._capacity = capacity
        self._arenas: list[Arena] = []

    def take(self, nbytes: int) -> tuple[Arena, Slice] | None:
        """Return a place for a weight of *nbytes*, or None when the session is full."""
        for arena in self._arenas:
            part = arena.take(nbytes)
            if part:
                return arena, part
        grown = self._grow(nbytes)
        part = grown.take(nbytes) if grown else None
        return (grown, part) if grown and part else None

    def _grow(self, nbytes: int) -> Arena | None:
        mapped = sum(arena.block.nbytes for arena in self._arenas)
        size = max(aligned(nbytes), min(max(mapped, LEAST_BYTES), MOST_BYTES))
        total = SCRATCH_BYTES + mapped + size
        if len(self._arenas) + 2 > self.transport.info.max_maps:
            return None
        if total > PROVEN_BYTES and total > self._capacity():
            return None
        try:
            arena = Arena(self.transport.allocate(size))
        except DeviceFull:
            return None
        self._arenas.append(arena)
        return arena
