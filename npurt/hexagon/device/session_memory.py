"""The memory of one session: weights, states of delta nets, and scratch."""

from collections import deque
from collections.abc import Callable

from npurt.errors import DeviceFull
from npurt.hexagon.device.scratch import Scratch, block_bytes
from npurt.hexagon.fastrpc.rpcmem import Block, BlockAllocator, Slice, aligned
from npurt.hexagon.session.transport import Transport

MIN_BYTES = 32 << 20  # size of the first block for weights; each later block doubles the total
MAX_BYTES = 256 << 20  # limit of a block: some boards cannot allocate a gigabyte in one piece
PROVEN_BYTES = 512 << 20  # every known session can map this; more requires a measurement


class SessionMemory:
    """A session and the blocks of memory that it shares with the host.

    Attributes:
        transport: The session.
        calls: Number of calls that ran products or delta nets in the session.
        scratch: The blocks for activations and results.
        written: Blocks with weights that the DSP cannot see yet; see `sync`.

    Args:
        transport: The session.
        calls: Number of calls that ran products or delta nets in the session.
        capacity: Returns how many bytes the session can map; called only beyond `PROVEN_BYTES`.
    """

    def __init__(self, transport: Transport, capacity: Callable[[], int]) -> None:
        self.transport = transport
        self.scratch = Scratch(transport)
        self._capacity = capacity
        self._allocators: list[BlockAllocator] = []
        self._own: list[Block] = []  # blocks that `own` has mapped
        self._returned: deque[Block] = deque()  # of `_own`, freed and still mapped
        self.written: list[Block] = []
        self._packets = 0
        self.calls = 0

    def packets(self) -> int:
        """Return the packets that the session has executed; after its end, the last count."""
        self._packets = max(self._packets, self.transport.packets())
        return self._packets

    # --- Weights ----------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> tuple[BlockAllocator, Slice] | None:
        """Return memory for a weight of *nbytes*, or None if the session is full."""
        for allocator in self._allocators:
            part = allocator.allocate(nbytes)
            if part:
                return allocator, part
        grown = self._grow(nbytes)
        part = grown.allocate(nbytes) if grown else None
        return (grown, part) if grown and part else None

    def _grow(self, nbytes: int) -> BlockAllocator | None:
        mapped = sum(allocator.block.nbytes for allocator in self._allocators)
        block = self._map(max(aligned(nbytes), min(max(mapped, MIN_BYTES), MAX_BYTES)))
        if block is None:
            return None
        self._allocators.append(BlockAllocator(block))
        return self._allocators[-1]

    def wrote(self, part: Slice) -> None:
        """Record that the host has written *part*, so that `sync` synchronises its block."""
        if part.block not in self.written:
            self.written.append(part.block)

    def sync(self) -> None:
        """Make the weights that the host has written visible to the DSP, each block once."""
        while self.written:
            self.transport.sync_for_device(self.written[-1])
            self.written.pop()

    # --- Blocks with one owner --------------------------------------------------------------------

    def own(self, nbytes: int) -> Block | None:
        """Return a block of *nbytes* for one owner, or None if the session is full.

        Freed blocks are reused if they have the right size, and unmapped otherwise.
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
        """Free a block of `own`.  A finalizer may call this at any moment."""
        self._returned.append(block)

    def _map(self, nbytes: int) -> Block | None:
        blocks = [*(allocator.block for allocator in self._allocators), *self._own]
        total = self.scratch.nbytes + sum(block.nbytes for block in blocks) + nbytes
        if len(blocks) + self.scratch.maps + 1 > self.transport.info.max_maps:
            return None
        if total > PROVEN_BYTES and total > self._capacity():
            return None
        try:
            return self.transport.allocate(nbytes)
        except DeviceFull:
            return None
