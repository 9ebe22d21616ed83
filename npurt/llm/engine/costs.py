"""Estimate the time of a run from its number of rows, by the times of earlier runs."""

from bisect import bisect_left

from npurt.llm.spec.controller import PRIOR_ROW, Mean

EXACT = 16  # each number of rows up to this has its own mean; larger ones share means in groups
STEPS = 4  # groups between a power of two and the next
GROWTH = 2.5  # assumed slowdown of a run with GROWTH times the largest number of rows so far


class RowCosts:
    """Running means of the seconds of a run, by number of rows, with interpolation.

    Args:
        maximum: The largest number of rows of a run.
    """

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._means: dict[int, Mean] = {}
        self._known: list[int] = []  # the keys of `_means`, in ascending order

    def add(self, rows: int, seconds: float) -> None:
        """Add the time of a run with *rows* rows."""
        key = _group(rows)
        if key not in self._means:
            self._means[key] = Mean(0.0)
            self._known.insert(bisect_left(self._known, key), key)
        self._means[key].add(seconds)

    def seconds(self, rows: int) -> float:
        """Return the estimated seconds of a run with *rows* rows; 0 before the first run.

        Above the largest measured number of rows, the time is proportional to the number of rows.
        """
        if not self._known:
            return 0.0
        at = bisect_left(self._known, rows)
        if at == len(self._known):
            maximum = self._known[-1]
            return self._of(maximum) * rows / maximum
        above = self._known[at]
        if above == rows or at == 0:
            return self._of(above)
        below = self._known[at - 1]
        low, high = self._of(below), self._of(above)
        return low + (high - low) * (rows - below) / (above - below)

    def row(self, rows: int) -> float:
        """Return the seconds that one more row adds to a run of *rows*.

        Until a larger run was measured, this is `PRIOR_ROW` of the time of a run with one row.
        """
        if not self._known:
            return 0.0
        if self._known[-1] <= rows:
            return PRIOR_ROW * self.seconds(1)
        return max(0.0, self.seconds(rows + 1) - self.seconds(rows))

    def rows_within(self, seconds: float, minimum: int) -> int:
        """Return the largest number of rows of a run within *seconds*, but at least *minimum*."""
        best = minimum
        for rows in _candidates(minimum, self.maximum):
            if (
                self.seconds(rows) <= seconds
            ):  # no break: one slow measurement must not end the search
                best = rows
        return best

    def _of(self, key: int) -> float:
        return self._means[key].value


def _group(rows: int) -> int:
    """Return the largest number of rows in the group of *rows*, which is the key of its mean."""
    if rows <= EXACT:
        return rows
    step = max(1, (1 << (rows - 1).bit_length() - 1) // STEPS)
    return -(-rows // step) * step


def _candidates(minimum: int, maximum: int) -> list[int]:
    """Return *minimum*, the keys of the groups above it, and *maximum*."""
    found, rows = [], minimum
    while rows < maximum:
        found.append(rows)
        rows = _group(rows + 1)
    return [*found, maximum]
