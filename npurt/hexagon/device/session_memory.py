"""The memory of one session: weights, states of delta nets, and scratch."""

from collections import deque
from collections.abc import Callable

from npurt.errors import DeviceFull
from npurt.hexagon.device.scratch import Scratch, block_bytes
from npurt.hexagon.fastrpc.rpcmem import Arena, Block, Slice, aligned
from npurt.hexagon.session.transport import Transport

LEAST_BYTES = 32 << 20  # of the first block for weights; later ones double what there is,
MOST_BYTES = 256 << 20  # up to this: boards exist that cannot give a gigabyte in one piece
PROVEN_BYTES = 512 << 20  # every known session has this room: below it nothing is measured


class SessionMemory:
    """A session and the blocks of memory that it shares with the host.

    Attributes:
        transport: The session.
        scratch: What activations and results pass through.
        written: Blocks with weights that the DSP cannot see yet; see `sync`.

    Args:
        transport: The session.
        capacity: Returns how many bytes the session can map; asked when it matters.
    """

    def __init__(self, transport: Transport, capacity: Callable[[], int]) -> None:
        self.transport = transport
        self.scratch = Scratch(transport)
        self._capacity = capacity
        self._arenas: list[Arena] = []
        self._own: list[Block] = []  # blocks with one owner each
        self._returned: deque[Block] = deque()
        self.written: list[Block] = []  # whose weights the DSP cannot see yet
        self._packets = 0

    def packets(self) -> int:
        """Return the packets that the session executed; after its end, what was last returned."""
        self._packets = max(self._packets, self.transport.packets())
        return self._packets

    # --- Weights ----------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> tuple[Arena, Slice] | None:
        """Return room for a weight of *nbytes*, or None when the session is full."""
        for arena in self._arenas:
            part = arena.allocate(nbytes)
            if part:
                return arena, part
        grown = self._grow(nbytes)
        part = grown.allocate(nbytes) if grown else None
        return (grown, part) if grown and part else None

    def _grow(self, nbytes: int) -> Arena | None:
        mapped = sum(arena.block.nbytes for arena in self._arenas)
        block = self._map(max(aligned(nbytes), min(max(mapped, LEAST_BYTES), MOST_BYTES)))
        if block is None:
            return None
        self._arenas.append(Arena(block))
        return self._arenas[-1]

    def wrote(self, part: Slice) -> None:
        """Record that the host has written *part*, for `sync`."""
        if part.block not in self.written:
            self.written.append(part.block)

    def sync(self) -> None:
        """Make weights that the host wrote visible to the DSP, each block once."""
        while self.written:
            self.transport.sync_for_device(self.written[-1])
            self.written.pop()

    # --- Blocks with one owner --------------------------------------------------------------------

    def own(self, nbytes: int) -> Block | None:
        """Return a block for *nbytes* and nothing else, or None when the session is full.

        One that has come back is used again if it has the size; others are unmapped.
        """
        size = block_bytes(nbytes)
        while self._returned:
            block = self._returned.popleft()
            if block.nbytes == size:
                return block
            self._own.remove(block)
            self.transport.free(block)
        made = self._map(size)
        if made:
            self._own.append(made)
        return made

    def free(self, block: Block) -> None:
        """Return a block of `own`.  May be called at any moment, by a finalizer too."""
        self._returned.append(block)

    def _map(self, nbytes: int) -> Block | None:
        blocks = [*(arena.block for arena in self._arenas), *self._own]
        total = self.scratch.nbytes + sum(block.nbytes for block in blocks) + nbytes
        if len(blocks) + self.scratch.maps + 1 > self.transport.info.max_maps:
            return None
        if total > PROVEN_BYTES and total > self._capacity():
            return None
        try:
            return self.transport.allocate(nbytes)
        except DeviceFull:
            return None
