"""Native calls that one thread makes for others, through `npurt_native_call.h`.

A queue and a lock in Python would wake a sleeping thread twice for each call, and each time the
thread would have to take Python's lock too.
"""

import threading
import time
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from npurt import library
from npurt.once import once

HEADER = Path(__file__).with_name("npurt_native_call.h")
LIBRARY = "hexagon/fastrpc/libnpurt_native_call.so"


@once
def ffi() -> Any:
    """Parse the header once, on first use."""
    return library.declare(HEADER)


@once
def lib() -> Any:
    """The library, opened on first use.

    Raises:
        DeviceNotFound: It is missing, or cannot be loaded.
    """
    return library.load(ffi(), library.path_of(LIBRARY), "the Hexagon backend's functions")


class NativeCall(NamedTuple):
    """``invoke(handle, scalars, arguments)`` of C."""

    invoke: int  # its address
    handle: int
    scalars: int
    arguments: Any  # a pointer of cffi
    owner: Any  # of what arguments refer to


class End(IntEnum):
    """The outcome of a call; the values of `npurt_native_call.h`."""

    DONE = 0
    BUSY = 1
    INTERRUPTED = 2
    DROPPED = 3
    LATE = 4


class NativeCaller:
    """Has the thread that is in `serve` make one native call at a time."""

    def __init__(self) -> None:
        self._caller = ffi().gc(lib().npurt_native_new(), lib().npurt_native_free)
        if not self._caller:
            raise MemoryError
        self._call, self._wait = lib().npurt_native_call, lib().npurt_native_wait
        self._busy = lib().npurt_native_busy
        self._result = ffi().new("int64_t[3]")
        self._one = threading.Lock()
        self._last: NativeCall | None = None  # kept: it may be under way

    def call(self, call: NativeCall, seconds: float) -> tuple[End, int, int]:
        """Have *call* made; return its outcome and, when DONE, its result and errno.

        Args:
            seconds: How long to wait.  After that a call that has begun is LATE, and goes on; one
                that has not is DROPPED.  BUSY: it was not taken, for another goes on, or no thread
                will serve again.
        """
        if not self._one.acquire(blocking=False):
            return End.BUSY, 0, 0
        try:
            return self._make(call, seconds)
        finally:
            self._one.release()

    def _make(self, call: NativeCall, seconds: float) -> tuple[End, int, int]:
        if self.is_busy():
            return End.BUSY, 0, 0
        self._last = call
        invoke, handle, scalars, arguments, _ = call
        result = self._result
        limit = int(seconds * 1e9)
        end = self._call(self._caller, invoke, handle, scalars, arguments, limit, result)
        if end == End.INTERRUPTED:
            end = self._go_on(limit)
        return end, result[0], result[1]

    def _go_on(self, limit: int) -> int:
        """Wait again until no signal comes; its handler, which may raise, runs between."""
        until = time.monotonic_ns() + limit
        end: int = End.INTERRUPTED
        while end == End.INTERRUPTED:
            end = self._wait(self._caller, max(0, until - time.monotonic_ns()), self._result)
        return end

    @property
    def nanoseconds(self) -> int:
        """How long the last call took."""
        return int(self._result[2])

    def is_busy(self) -> bool:
        """True while a call is under way, or waits for the thread."""
        return bool(self._busy(self._caller))

    def serve(self) -> None:
        """Make calls on this thread until `wake`."""
        lib().npurt_native_serve(self._caller)

    def wake(self) -> None:
        """Let `serve` return, now or after the call that it makes."""
        lib().npurt_native_wake(self._caller)

    def close(self) -> None:
        """Refuse further calls; called on the thread that serves."""
        lib().npurt_native_close(self._caller)
