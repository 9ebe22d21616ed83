"""Progress bars: on a terminal, on stderr, and only for what takes more than a moment."""

import sys
from typing import Self

PATIENCE = 0.7  # seconds before a bar appears


class Progress:
    """A bar for *total* of *unit*; nothing at all when not *shown* or not on a terminal."""

    def __init__(self, label: str, total: int, unit: str, *, shown: bool = True) -> None:
        self._bar = None
        if shown and _terminal():
            from tqdm import tqdm  # takes a while to import, and few runs need it

            self._bar = tqdm(
                total=total, desc=label, unit=unit, unit_scale=True, leave=False, delay=PATIENCE
            )

    def add(self, count: int) -> None:
        """So much more is done."""
        if self._bar is not None:
            self._bar.update(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _terminal() -> bool:
    """Say whether stderr is one; it may be closed, or not there at all."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:
        return False
