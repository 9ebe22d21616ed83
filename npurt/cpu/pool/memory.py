"""Memory for weight images and activations: zeroed, taken from the system when first touched.

Weights lie in huge pages where the kernel allows: that saves page faults at load and a few percent
of read bandwidth at decode.  Activations do not: a short prompt touches little of them.
"""

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

from npurt.errors import NpurtError, brief

ALIGN = 64  # bytes: a cache line, and the widest vector
SMALL = 1 << 18  # bytes below which a mapping of its own costs more than it saves


def allocate(nbytes: int, *, huge: bool = False) -> npt.NDArray[np.uint8]:
    """Return at least *nbytes* zeroed bytes (at least one), freed with the last view.

    Raises:
        NpurtError: There is not so much.
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
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)


class Arena:
    """An allocator of aligned parts of one mapping, because large mappings get huge pages."""

    def __init__(self, nbytes: int) -> None:
        self._memory = allocate(nbytes, huge=True)
        self._used = 0

    @staticmethod
    def room(nbytes: int) -> int:
        """Bytes that a piece of *nbytes* takes."""
        return -(-nbytes // ALIGN) * ALIGN

    def allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return the next *nbytes* bytes; a fresh allocation when the arena is used up."""
        start, self._used = self._used, self._used + self.room(nbytes)
        if self._used > self._memory.nbytes:
            return allocate(nbytes, huge=True)
        return self._memory[start : start + nbytes]
