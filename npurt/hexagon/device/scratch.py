"""Blocks for activations and results, each about as large as its content.

The kernel synchronises a dma-buf whole, so each use of a block costs its size
(docs/decisions/016).  All batches of a session share these blocks: only one runs at a time.
"""

import mmap
import weakref
from collections import OrderedDict
from typing import NamedTuple, Protocol

from npurt.errors import DeviceFull
from npurt.hexagon.fastrpc.rpcmem import Block
from npurt.hexagon.session.transport import Transport

BATCH_BYTES = 32 << 20  # most activations and results of one batch
RESERVED_BYTES = 35 << 20  # that their blocks take: BATCH_BYTES, 1/16 of it, and two pages
MOST_BYTES = 128 << 20  # of all blocks: four kinds of batches of a layer, and what parts leave over
MOST_BLOCKS = 48


class User(Protocol):
    """An object that has views of blocks."""

    def forget_scratch(self) -> None:
        """Drop the views: a block is about to be unmapped."""


class _Entry(NamedTuple):
    block: Block
    users: "weakref.WeakSet[User]"


class Scratch:
    """The blocks, by size; the least recently taken go first when there are too many.

    Raises:
        DeviceFull: There is no memory for one batch.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()
        self._allocate((RESERVED_BYTES, 0))  # so that weights cannot take it all

    @property
    def blocks(self) -> list[Block]:
        """All blocks."""
        return [entry.block for entry in self._entries.values()]

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks, at least those that one batch may need."""
        return max(RESERVED_BYTES, sum(block.nbytes for block in self.blocks))

    @property
    def maps(self) -> int:
        """The number of blocks, at least the two that one batch needs."""
        return max(2, len(self._entries))

    def pair(self, x_bytes: int, y_bytes: int, user: User) -> tuple[Block, Block]:
        """Return a block for *x_bytes* and another for *y_bytes*, until *user* has to forget them.

        Raises:
            DeviceFull: There is no memory for them, even without all others.
            DeviceLost: The DSP process is gone.
        """
        x_size, y_size = block_bytes(x_bytes), block_bytes(y_bytes)
        keys = (x_size, 0), (y_size, int(x_size == y_size))
        for key in keys:
            if key not in self._entries:
                self._make_room(key[0], keys)
                self._allocate(key, keys)
            self._entries.move_to_end(key)
            self._entries[key].users.add(user)
        return self._entries[keys[0]].block, self._entries[keys[1]].block

    def _make_room(self, size: int, keep: tuple[tuple[int, int], ...]) -> None:
        for key in [key for key in self._entries if key not in keep]:
            total = sum(block.nbytes for block in self.blocks)
            if len(self._entries) < MOST_BLOCKS and total + size <= MOST_BYTES:
                return
            self._evict(key)

    def _allocate(self, key: tuple[int, int], keep: tuple[tuple[int, int], ...] = ()) -> None:
        try:
            block = self._transport.allocate(key[0])
        except DeviceFull:
            others = [other for other in self._entries if other not in keep]
            if not others:
                raise
            for other in others:
                self._evict(other)
            block = self._transport.allocate(key[0])
        self._entries[key] = _Entry(block, weakref.WeakSet())

    def _evict(self, key: tuple[int, int]) -> None:
        block, users = self._entries.pop(key)
        for user in users:
            user.forget_scratch()
        self._transport.free(block)


def block_bytes(nbytes: int) -> int:
    """Return the size of a block for *nbytes*: whole pages, less than 1/16 more than it needs.

    Sizes in between are left out so that not every number of rows has blocks of its own.
    """
    pages = -(-nbytes // mmap.PAGESIZE)
    step = 1 << max(0, pages.bit_length() - 5)
    return -(-pages // step) * step * mmap.PAGESIZE
