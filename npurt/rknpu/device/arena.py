"""Manage arenas: the memory of jobs, with an address space and work buffers for each core.

Weights may fill all memory.  So the work buffers (features, results, command words and task
structs) are reserved before the first weight is uploaded.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy

from npurt.device.device import MAX_ROWS, Use
from npurt.errors import DeviceFull
from npurt.rknpu.device.needs import Need, needs_of
from npurt.rknpu.driver.base import Driver
from npurt.rknpu.driver.memory import PAGE, Buffer, Space, Suballocation
from npurt.rknpu.plan.proof import Role
from npurt.rknpu.plan.tiling import padded

# A new address space is opened only if the last one has at least this many used bytes.  A full
# space with fewer bytes means that memory is used up, and a new space does not add memory.  A full
# space with more bytes may lack addresses: fragmented spaces of rknpu hold 600 MB
# [HW: rknpu-submit].
ADDRESSES = 1 << 28


class Arena:
    """One address space for each core, and work buffers that all products share.

    Attributes:
        full: The error of the last upload if the weight did not fit; else None.
        full_at: The size in bytes of the weight that did not fit.
    """

    def __init__(self, spaces: Sequence[Space]) -> None:
        self.spaces = tuple(spaces)
        self.full: DeviceFull | None = None
        self.full_at = 0
        self._buffers: dict[tuple[str, int], list[Buffer]] = {}  # (use, core) -> buffers

    @property
    def shared(self) -> bool:
        """Whether all cores have one address space."""
        return len(self.spaces) > 1 and self.spaces[0] is self.spaces[-1]

    def work_buffers(
        self, features: int, results: Sequence[int]
    ) -> tuple[list[Buffer], list[Buffer]]:
        """Return the buffers A and C of each core: at least *features* and *results* bytes.

        Raises:
            DeviceFull: Memory is used up; nothing was allocated.
        """
        with self._all_or_nothing():
            a = [
                self._take("A", 0 if self.shared else core, features)
                for core in range(len(results))
            ]
            return a, [self._take("C", core, nbytes) for core, nbytes in enumerate(results)]

    def _take(self, use: str, core: int, nbytes: int) -> Buffer:
        """Return a buffer of at least *nbytes*, and less than twice as large if memory allows.

        Large buffers cost time, because rocket cleans whole buffers.
        """
        size = max(PAGE, 1 << (nbytes - 1).bit_length())
        large = [each for each in self._of(use, core) if each.nbytes >= nbytes]
        best = min(large, key=lambda each: each.nbytes, default=None)
        if best and best.nbytes <= size:
            return best
        try:
            return self._alloc(use, core, size)
        except DeviceFull:
            if best is None:
                raise
            return best

    def _of(self, use: str, core: int) -> list[Buffer]:
        return self._buffers.setdefault((use, core), [])

    def _alloc(self, use: str, core: int, nbytes: int) -> Buffer:
        role = Role.INPUT if use == "A" else Role.OUTPUT
        buffer = self.spaces[core].alloc(nbytes, role, f"{use}, core {core}")
        self._of(use, core).append(buffer)
        return buffer

    def reserve(self, driver: Driver, needs: Sequence[Need]) -> None:
        """Allocate the work buffers of jobs with *needs*, which share them: one job runs at a time.

        Raises:
            DeviceFull: Memory is used up; nothing was allocated.
        """
        with self._all_or_nothing():
            for use, core, nbytes in self._largest(needs):
                self._alloc(use, core, padded(nbytes, PAGE))
            allocated: list[Suballocation] = []
            try:
                for need in sorted(needs, key=lambda each: -sum(each.tasks)):
                    self.work_buffers(need.features, need.results)
                    allocated += driver.commands(self.spaces, need.tasks)
            finally:
                for each in allocated:
                    each.free()

    def ensure(self, driver: Driver, need: Need) -> None:
        """Allocate the work buffers of one job with *need*; other jobs share them.

        Raises:
            DeviceFull: Memory is used up; nothing was allocated.
        """
        with self._all_or_nothing():
            self.work_buffers(need.features, need.results)
            for each in driver.commands(self.spaces, need.tasks):
                each.free()

    def _largest(self, needs: Sequence[Need]) -> Iterator[tuple[str, int, int]]:
        """Yield use, core and bytes of the largest buffer of each use and core."""
        for core in range(max(len(need.results) for need in needs)):
            if not (core and self.shared):
                yield "A", core, max(need.features for need in needs)
            yield "C", core, max(n.results[core] for n in needs if core < len(n.results))

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Free the buffers that the block allocated if the block raises DeviceFull."""
        before = {key: list(buffers) for key, buffers in self._buffers.items()}
        try:
            yield
        except DeviceFull:
            for key, buffers in self._buffers.items():
                for buffer in buffers:
                    if buffer not in before.get(key, ()):
                        buffer.free()
            self._buffers = before
            for space in dict.fromkeys(self.spaces):
                space.trim()
            raise


class Arenas:
    """The arenas of an opened NPU: one, or several with the vendor's driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._arenas = [Arena(driver.spaces)]
        self._uses: Sequence[Use] = ()
        self._all_open = False

    def reserve(self, uses: Sequence[Use]) -> None:
        """Reserve work buffers for products with *uses* in each arena, including later arenas.

        If memory is short, reserve buffers for fewer rows at once.

        Raises:
            DeviceFull: The buffers for a single row do not fit.
        """
        self._uses = uses
        for arena in self._arenas:
            self._reserve(arena)

    def _reserve(self, arena: Arena) -> None:
        rows = MAX_ROWS
        cores, seconds = len(arena.spaces), self._driver.planned_s
        while needs := needs_of(self._uses, rows, cores, seconds):
            try:
                arena.reserve(self._driver, needs)
                break
            except DeviceFull:
                if rows == 1:
                    raise
                rows //= 2

    def place(self, nbytes: int, upload: Callable[[Arena], None]) -> None:
        """Call *upload* with arenas until one has enough space for a weight of *nbytes*.

        Raises:
            DeviceFull: No arena has enough space.
        """
        for arena in self._with_space(nbytes):
            try:
                return upload(arena)
            except DeviceFull as error:
                arena.full = copy(error)  # drops the traceback, whose frames keep objects alive
                arena.full_at = nbytes
        raise copy(next(arena.full for arena in reversed(self._arenas) if arena.full))

    def _with_space(self, nbytes: int) -> Iterator[Arena]:
        """Yield the arenas that may have *nbytes* free, then a new arena."""
        for arena in self._arenas:
            if not arena.full or nbytes < arena.full_at:
                yield arena
        used = self._arenas[-1].spaces[0].used
        spaces = self._driver.more_spaces() if used >= ADDRESSES and not self._all_open else ()
        if not spaces:
            return
        arena = Arena(spaces)
        try:
            self._reserve(arena)
        except DeviceFull:
            self._all_open = True
            return
        self._arenas.append(arena)
        yield arena

    def freed(self) -> None:
        """Record that memory was freed, so full arenas may have space again."""
        for arena in self._arenas:
            arena.full = None
        self._all_open = False

    def clear(self) -> None:
        """Drop all arenas; the driver frees their buffers when it is closed."""
        self._arenas.clear()
