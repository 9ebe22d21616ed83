"""A device that is lost: it is opened again, its weights uploaded, and the work repeated."""

import copy
import time
from collections.abc import Callable
from typing import TypeVar

from npurt.errors import DeviceFull, DeviceLost, DeviceNotFound, DriverError, NpurtError

RESTARTS = 2  # of a device; after that it stays lost
RETRY_SECONDS = 0.1

T = TypeVar("T")


class Restarts:
    """How often a device was lost, whether it is given up or closed, and what to say of it.

    The device's methods are given call by call: kept here, they would keep a forgotten device open.

    Args:
        name: What the device is called in messages.
        lost: Errors that only opening it again can mend; `DeviceFull` is none.
        remedy: What to do when it is given up; "" is the remedy of its last failure.
    """

    def __init__(self, name: str, lost: tuple[type[DriverError], ...], remedy: str = "") -> None:
        self.closed = False
        self._name = name
        self._lost = lost
        self._remedy = remedy
        self._failures = 0
        self._failed: DriverError | None = None  # what must be recovered from
        self._news: list[str] = []

    def surviving(self, work: Callable[[], None], reopen: Callable[[], None]) -> None:
        """Do *work*; when the device is lost over it, *reopen* and repeat.

        Args:
            reopen: Releases what there is of the device, opens it and uploads all weights.  It may
                be interrupted, and is called again before any other work.

        Raises:
            DeviceLost: It was lost too often.
            NpurtError: It is closed.
        """
        if self.closed:
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
        self._news.append(f"{self._name} was opened again and its weights uploaded: {failure.what}")

    def news(self) -> list[str]:
        """Return what happened since the last call; see `Device.news`."""
        news, self._news = self._news, []
        return news


def patiently(connect: Callable[[], T], passing: type[DriverError], seconds: float) -> T:
    """Return what *connect* returns, tried again while a device that restarts is not back.

    Args:
        passing: Errors that may pass, as `DeviceNotFound` may.
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
