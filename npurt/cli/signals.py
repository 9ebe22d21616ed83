"""Signals that ask the program to end: it unwinds, so that files half written go.

The status is 128 and the number of the signal, as shells have it.  It may import nothing of npurt.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Self

ENDING = (signal.SIGTERM, signal.SIGHUP)


class Unwinding:
    """While entered, SIGTERM and SIGHUP raise SystemExit, and SIGINT KeyboardInterrupt.

    A signal that is ignored, as after nohup, stays so.

    Attributes:
        status: The exit status of the last signal; 0 when none came.
    """

    def __init__(self) -> None:
        self.status = 0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, *ENDING):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                try:
                    self._before[number] = signal.signal(number, self._unwind)
                except ValueError:  # only the main thread may
                    break
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what it returned

    def _unwind(self, number: int, frame: FrameType | None) -> None:
        self.status = 128 + number
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(self.status)

    def ends(self, error: BaseException) -> bool:
        """Return whether *error* comes of a signal.

        C code may replace what a signal raised: numpy reports an ImportError when it is stopped in
        its import.  After SIGTERM and SIGHUP, every error is taken for one of the signal.
        """
        if isinstance(error, KeyboardInterrupt):
            self.status = self.status or 128 + signal.SIGINT
            return True
        stopped = self.status != 0 and isinstance(error, ImportError)
        return stopped or self.status in [128 + number for number in ENDING]


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Hold SIGINT back until the end; only the main thread may enter."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
