"""Run a function in a background thread."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from npurt.base.threads import start

T = TypeVar("T")


class Background(Generic[T]):
    """Calls *make* in a new thread at once.  The thread does not keep the process alive.

    `concurrent.futures` can do this too, but its import adds 5 ms to the start of every program.

    Raises:
        NpurtError: The system allows no further thread.
    """

    def __init__(self, make: Callable[[], T], name: str) -> None:
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(make,), name=name, daemon=True)
        start(self._thread)

    def _run(self, make: Callable[[], T]) -> None:
        try:
            self._made.append(make())
        except BaseException as error:  # noqa: BLE001  `result` raises it
            self._error = error

    def done(self) -> bool:
        """Return whether the call has ended."""
        return not self._thread.is_alive()

    def result(self, seconds: float | None = None) -> T:
        """Wait for the call; return its result, or raise its exception.

        Raises:
            TimeoutError: The call did not end within *seconds*.
        """
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        if not self._made:
            raise TimeoutError(f"{self._thread.name} did not end within {seconds} s")
        return self._made[0]
