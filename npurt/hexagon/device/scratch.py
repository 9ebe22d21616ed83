"""Scratch blocks for activations and results, each about as large as its content.

Linux synchronises whole dma-bufs, so the time of a synchronisation grows with the size of the block
(docs/decisions/016).  A session runs one batch at a time, so all its batches use the same blocks.
"""

import mmap
import weakref
from collections import OrderedDict
from typing import NamedTuple, Protocol

from npurt.errors import DeviceFull
from npurt.hexagon.fastrpc.rpcmem import Block
from npurt.hexagon.session.transport import Transport

BATCH_BYTES = 32 << 20  # maximum bytes of activations and results in one batch
RESERVED_BYTES = 35 << 20  # blocks of such a batch: at most BATCH_BYTES * 17 / 16 and two pages
MAX_BYTES = 128 << 20  # limit for all blocks; enough for the four kinds of batches of a layer
MAX_BLOCKS = 48


class User(Protocol):
    """An object that holds views of scratch blocks."""

    def forget_scratch(self) -> None:
        """Drop the views, because a block will be unmapped."""


class _Entry(NamedTuple):
    block: Block
    users: "weakref.WeakSet[User]"


class Scratch:
    """The scratch blocks of a session, by size.

    When a limit is reached, the least recently used blocks are unmapped.

    Raises:
        DeviceFull: There is no memory for one batch.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()
        self._allocate((RESERVED_BYTES, 0))  # before weights fill the session

    @property
    def blocks(self) -> list[Block]:
        """All blocks."""
        return [entry.block for entry in self._entries.values()]

    @property
    def nbytes(self) -> int:
        """The total size of the blocks, or the size that one batch may need if that is larger."""
        return max(RESERVED_BYTES, sum(block.nbytes for block in self.blocks))

    @property
    def maps(self) -> int:
        """The number of blocks, or 2 if it is smaller: a batch needs two blocks."""
        return max(2, len(self._entries))

    def pair(self, x_bytes: int, y_bytes: int, user: User) -> tuple[Block, Block]:
        """Return a block for *x_bytes* and one for *y_bytes*.

        The blocks are valid until this object calls `user.forget_scratch`.

        Raises:
            DeviceFull: There is no memory for the two, even without all other blocks.
            DeviceLost: The DSP process is gone.
        """
        x_size, y_size = block_bytes(x_bytes), block_bytes(y_bytes)
        keys = (x_size, 0), (y_size, int(x_size == y_size))
        for key in keys:
            if key not in self._entries:
                self._make_space(key[0], keys)
                self._allocate(key, keys)
            self._entries.move_to_end(key)
            self._entries[key].users.add(user)
        return self._entries[keys[0]].block, self._entries[keys[1]].block

    def _make_space(self, size: int, keep: tuple[tuple[int, int], ...]) -> None:
        for key in [key for key in self._entries if key not in keep]:
            total = sum(block.nbytes for block in self.blocks)
            if len(self._entries) < MAX_BLOCKS and total + size <= MAX_BYTES:
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
    """Return the size of a block for *nbytes*: whole pages, less than 1/16 more than necessary.

    Only few sizes are possible, so that runs with similar numbers of rows use the same blocks.
    """
    pages = -(-nbytes // mmap.PAGESIZE)
    step = 1 << max(0, pages.bit_length() - 5)
    return -(-pages // step) * step * mmap.PAGESIZE
