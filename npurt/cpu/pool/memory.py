"""Allocate memory for weight images and activations: zeroed, committed on first access.

Weights use huge pages if the Linux kernel has them: there are fewer page faults at load, and
decoding reads weights a few percent faster.  Activations use small pages, because a short prompt
accesses only a small part of them.
"""

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

from npurt.errors import NpurtError, brief

ALIGN = 64  # bytes: the size of a cache line and of the widest vector
SMALL = 1 << 18  # bytes; a smaller array is not worth a separate mapping


def allocate(nbytes: int, *, huge: bool = False) -> npt.NDArray[np.uint8]:
    """Return max(*nbytes*, 1) zeroed bytes or more, freed with the last view of them.

    Raises:
        NpurtError: There is not enough memory.
    """
    if nbytes < SMALL:
        return np.zeros(max(nbytes, 1), np.uint8)
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise NpurtError(
            f"no memory for {brief(nbytes)} bytes: {error}",
            remedy="close other programs, or use a smaller model or context (-c)",
        ) from error
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a Linux kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)


class BumpAllocator:
    """An allocator of aligned parts of one mapping of *nbytes*.

    One large mapping gets huge pages where many small ones would not.
    """

    def __init__(self, nbytes: int) -> None:
        self._memory = allocate(nbytes, huge=True)
        self._used = 0

    @staticmethod
    def padded(nbytes: int) -> int:
        """Return *nbytes* rounded up to a multiple of ALIGN."""
        return -(-nbytes // ALIGN) * ALIGN

    def allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return the next *nbytes* bytes, or a new mapping if too few bytes are left."""
        start, self._used = self._used, self._used + self.padded(nbytes)
        if self._used > self._memory.nbytes:
            return allocate(nbytes, huge=True)
        return self._memory[start : start + nbytes]
