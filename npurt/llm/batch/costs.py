"""What a run of the model costs by its number of rows, from the times of the runs so far."""

from bisect import bisect_left

from npurt.llm.spec.controller import PRIOR_ROW, Mean

EXACT = 16  # numbers of rows up to this one are measured each; larger ones in groups
STEPS = 4  # groups between a number and twice that number
GROWTH = 2.5  # until measured, GROWTH times the rows are assumed to take GROWTH times as long


class RowCosts:
    """Running means of the seconds of a run, by its rows; interpolated between them.

    Args:
        most: The most rows of a run.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._means: dict[int, Mean] = {}
        self._known: list[int] = []  # their keys in order

    def add(self, rows: int, seconds: float) -> None:
        """Add a run."""
        key = _group(rows)
        if key not in self._means:
            self._means[key] = Mean(0.0)
            self._known.insert(bisect_left(self._known, key), key)
        self._means[key].add(seconds)

    def seconds(self, rows: int) -> float:
        """Return the time of a run of *rows* rows; 0 before the first run.

        Beyond the largest run so far each row costs what a row of that one costs on average.
        """
        if not self._known:
            return 0.0
        at = bisect_left(self._known, rows)
        if at == len(self._known):
            most = self._known[-1]
            return self._of(most) * rows / most
        above = self._known[at]
        if above == rows or at == 0:
            return self._of(above)
        below = self._known[at - 1]
        low, high = self._of(below), self._of(above)
        return low + (high - low) * (rows - below) / (above - below)

    def row(self, rows: int) -> float:
        """Return the seconds of one more row in a run of *rows*; assumed while not measured."""
        if not self._known:
            return 0.0
        if self._known[-1] <= rows:
            return PRIOR_ROW * self.seconds(1)
        return max(0.0, self.seconds(rows + 1) - self.seconds(rows))

    def rows_within(self, seconds: float, least: int) -> int:
        """Return the most rows of a run that takes no more than *seconds*, at least *least*."""
        best = least
        for rows in _candidates(least, self.most):
            if self.seconds(rows) <= seconds:  # one bad time says nothing of more rows
                best = rows
        return best

    def _of(self, key: int) -> float:
        return self._means[key].value


def _group(rows: int) -> int:
    """Return the number of rows that stands for *rows*: the upper end of its group."""
    if rows <= EXACT:
        return rows
    step = max(1, (1 << (rows - 1).bit_length() - 1) // STEPS)
    return -(-rows // step) * step


def _candidates(least: int, most: int) -> list[int]:
    """Return numbers of rows from *least* to *most*: all groups between them."""
    found, rows = [], least
    while rows < most:
        found.append(rows)
        rows = _group(rows + 1)
    return [*found, most]
