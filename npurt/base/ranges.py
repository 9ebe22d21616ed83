"""An allocator of ranges, for example of the bytes of a buffer."""


class Ranges:
    """The free ranges of ``0..size``; ranges start and end at multiples of *step*."""

    def __init__(self, size: int, step: int) -> None:
        self._step = step
        self._whole = [(0, size // step * step)]
        self._free = list(self._whole)  # (start, end), ascending; neighbouring ranges are joined

    @property
    def is_free(self) -> bool:
        """True when no range is allocated."""
        return self._free == self._whole

    def allocate(self, size: int) -> int | None:
        """Allocate *size*, rounded up; return the start, or None if no free range is that large."""
        size = self._rounded(size)
        for i, (start, end) in enumerate(self._free):
            if end - start >= size:
                self._free[i : i + 1] = [(start + size, end)] if end - start > size else []
                return start
        return None

    def free(self, start: int, size: int) -> None:
        """Free a range that `allocate` returned."""
        merged: list[tuple[int, int]] = []
        for part in sorted([*self._free, (start, start + self._rounded(size))]):
            if merged and merged[-1][1] == part[0]:
                merged[-1] = merged[-1][0], part[1]
            else:
                merged.append(part)
        self._free = merged

    def _rounded(self, size: int) -> int:
        return -(-size // self._step) * self._step
