"""Recover a lost device: open it again, upload its weights, repeat the work."""

import copy
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from npurt.errors import DeviceFull, DeviceLost, DeviceNotFound, DriverError, NpurtError

RESTARTS = 2  # most recoveries of a device; the next failure is final
RETRY_SECONDS = 0.1

T = TypeVar("T")


class Restarts:
    """Runs work on a device, and reopens the device after a loss, at most `RESTARTS` times.

    Each call passes the device's methods as arguments: with a stored reference, the device would
    stay open after its last user dropped the device.

    Attributes:
        lock: Held during all work, so that one thread at a time uses the device.
        count: Times that the device was opened again.

    Args:
        name: The device's name in messages.
        lost: Errors after which the device has to be opened again; `DeviceFull` is always excluded.
        remedy: The remedy in the final DeviceLost; "" means the remedy of the last failure.
    """

    def __init__(self, name: str, lost: tuple[type[DriverError], ...], remedy: str = "") -> None:
        self.lock = threading.RLock()
        self.count = 0
        self._closed = False
        self._name = name
        self._lost = lost
        self._remedy = remedy
        self._failures = 0
        self._failed: DriverError | None = None  # the failure that needs a recovery
        self._events: list[str] = []

    def surviving(self, work: Callable[[], None], reopen: Callable[[], None]) -> None:
        """Do *work*; if the device is lost, *reopen* it and repeat *work*.

        Args:
            work: The work; it must be safe to repeat.
            reopen: Releases the device, opens it and uploads all weights.  If *reopen* was
                interrupted, the next work starts with another call of *reopen*.

        Raises:
            DeviceLost: The device was lost more than `RESTARTS` times.
            NpurtError: The device is closed.
        """
        with self.lock:
            if self._closed:
                raise NpurtError(f"{self._name} is closed", remedy="open it again")
            while self._failures <= RESTARTS:
                try:
                    if self._failed:
                        self._recover(self._failed, reopen)
                    return work()
                except DeviceFull:
                    raise
                except self._lost as error:
                    self._failures += 1
                    # A copy has no traceback, whose frames would keep the device alive.
                    self._failed = copy.copy(error)
        assert self._failed
        raise DeviceLost(
            f"{self._name} was lost {self._failures} times and is given up: {self._failed.what}",
            remedy=self._remedy or self._failed.remedy,
            call=self._failed.call,
            code=self._failed.code,
        ) from self._failed

    def close(self, release: Callable[[], None]) -> None:
        """Call *release*; later work raises NpurtError."""
        with self.lock:
            self._closed = True
            release()

    def _recover(self, failure: DriverError, reopen: Callable[[], None]) -> None:
        try:
            reopen()
        except (DeviceNotFound, DriverError) as error:
            raise DeviceLost(
                f"{self._name} cannot be opened again: {error.what}",
                remedy=error.remedy,
                call=failure.call,
                code=failure.code,
            ) from error
        self._failed = None
        self.count += 1
        event = f"{self._name} was opened again and its weights uploaded: {failure.what}"
        self._events.append(event)

    def events(self) -> list[str]:
        """Return the events since the last call; see `Device.events`."""
        events, self._events = self._events, []
        return events


def patiently(connect: Callable[[], T], passing: type[DriverError], seconds: float) -> T:
    """Call *connect* until it succeeds, while a device restarts; return its result.

    Args:
        passing: Errors after which to try again, besides `DeviceNotFound`.
        seconds: Time after which an error is raised.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return connect()
        except (DeviceNotFound, passing):
            if time.monotonic() > end:
                raise
        time.sleep(RETRY_SECONDS)
