"""Recovery of a lost device: open it again, upload its weights, repeat the work."""

import copy
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from npurt.errors import DeviceFull, DeviceLost, DeviceNotFound, DriverError, NpurtError

RESTARTS = 2  # of a device; after that it stays lost
RETRY_SECONDS = 0.1

T = TypeVar("T")


class Restarts:
    """Counts how often a device was lost; knows whether it is given up or closed, and why.

    Each call passes the device's methods: a reference kept here would keep a dropped device open.

    Attributes:
        lock: Held during all work: one thread at a time uses the device.
        count: How often the device was opened again.

    Args:
        name: What the device is called in messages.
        lost: Errors after which the device has to be opened again; `DeviceFull` is never one.
        remedy: What the user can do when it is given up; "": the remedy of the last failure.
    """

    def __init__(self, name: str, lost: tuple[type[DriverError], ...], remedy: str = "") -> None:
        self.lock = threading.RLock()
        self.count = 0
        self._closed = False
        self._name = name
        self._lost = lost
        self._remedy = remedy
        self._failures = 0
        self._failed: DriverError | None = None  # what must be recovered from
        self._events: list[str] = []

    def surviving(self, work: Callable[[], None], reopen: Callable[[], None]) -> None:
        """Do *work*; if that loses the device, *reopen* it and repeat.

        Args:
            reopen: Releases the device, opens it and uploads all weights.  After an interruption it
                is called again before any other work.

        Raises:
            DeviceLost: It was lost too often.
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
                    self._failed = copy.copy(error)  # without frames, which would keep the device
        assert self._failed
        raise DeviceLost(
            f"{self._name} was lost {self._failures} times and is given up: {self._failed.what}",
            remedy=self._remedy or self._failed.remedy,
            call=self._failed.call,
            code=self._failed.code,
        ) from self._failed

    def close(self, release: Callable[[], None]) -> None:
        """Call *release*, and refuse all work from now on."""
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
        passing: Errors after which to try again, such as `DeviceNotFound`.
        seconds: For how long to try.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return connect()
        except (DeviceNotFound, passing):
            if time.monotonic() > end:
                raise
        time.sleep(RETRY_SECONDS)
