"""Run a function in a thread while the caller does something else."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """A call of *make* in a thread of its own, which starts at once; the process may end before it.

    `concurrent.futures` does the same, but importing it adds 5 ms to the start of every program.
    """

    def __init__(self, make: Callable[[], T], name: str) -> None:
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(make,), name=name, daemon=True)
        self._thread.start()

    def _run(self, make: Callable[[], T]) -> None:
        try:
            self._made.append(make())
        except BaseException as error:  # noqa: BLE001  raised in the thread that asks for the result
            self._error = error

    def done(self) -> bool:
        """Say whether the call has ended."""
        return not self._thread.is_alive()

    def result(self, seconds: float | None = None) -> T:
        """Wait for the call; return what it returned, or raise what it raised.

        Raises:
            TimeoutError: It did not end within *seconds*.
        """
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        if not self._made:
            raise TimeoutError(f"{self._thread.name} did not end within {seconds} s")
        return self._made[0]
