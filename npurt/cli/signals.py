"""Turn terminating signals into exceptions, so that cleanup removes incomplete files.

The exit status is 128 plus the number of the signal, as in shells.  This module must not
import other modules of npurt.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Self

ENDING = (signal.SIGTERM, signal.SIGHUP)


class Unwinding:
    """A context in which SIGTERM and SIGHUP raise SystemExit, and SIGINT raises KeyboardInterrupt.

    A signal that the process already ignores, for example under nohup, remains ignored.

    Attributes:
        status: The exit status of the last signal; 0 before any signal.
    """

    def __init__(self) -> None:
        self.status = 0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, *ENDING):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                try:
                    self._before[number] = signal.signal(number, self._unwind)
                except ValueError:  # only the main thread may set handlers
                    break
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # returned by signal.signal

    def _unwind(self, number: int, frame: FrameType | None) -> None:
        self.status = 128 + number
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(self.status)

    def ends(self, error: BaseException) -> bool:
        """Return whether a signal caused *error*.

        C code may replace the exception of a signal: numpy raises ImportError if a signal
        interrupts its import.  After SIGTERM or SIGHUP, every error is attributed to the signal.
        """
        if isinstance(error, KeyboardInterrupt):
            self.status = self.status or 128 + signal.SIGINT
            return True
        stopped = self.status != 0 and isinstance(error, ImportError)
        return stopped or self.status in [128 + number for number in ENDING]


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Delay SIGINT until the end of the context, which only the main thread may enter."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
