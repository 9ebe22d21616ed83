"""Progress bars on stderr, if it is a terminal and the work takes longer than `PATIENCE`."""

import sys
from typing import Self

from npurt.base import late

PATIENCE = 0.7  # seconds before a bar appears


class Progress:
    """A progress bar up to *total* of *unit*; invisible without *shown* or without a terminal."""

    def __init__(self, label: str, total: int, unit: str, *, shown: bool = True) -> None:
        self._bar = None
        if shown and _terminal():
            with late.imports():
                from tqdm import tqdm  # imported late: the import is slow

            self._bar = tqdm(
                total=total, desc=label, unit=unit, unit_scale=True, leave=False, delay=PATIENCE
            )

    def add(self, count: int) -> None:
        """Advance the bar by *count*."""
        if self._bar is not None:
            self._bar.update(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _terminal() -> bool:
    """Return whether stderr is a terminal; False if stderr is closed or missing."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:
        return False
