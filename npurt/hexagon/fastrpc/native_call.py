"""Make native calls on another thread, through `npurt_native_call.h`.

With a queue and a lock in Python, each call would wake a sleeping thread twice, and the thread
would have to acquire the GIL each time.
"""

import threading
import time
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from npurt.base import library
from npurt.base.once import once

HEADER = Path(__file__).with_name("npurt_native_call.h")
LIBRARY = "hexagon/fastrpc/libnpurt_native_call.so"


@once
def ffi() -> Any:
    """Parse the header at the first use."""
    return library.declare(HEADER)


@once
def lib() -> Any:
    """Open the library at the first use.

    Raises:
        DeviceNotFound: The library is missing or cannot be loaded.
    """
    return library.load(ffi(), library.path_of(LIBRARY), "the Hexagon backend's functions")


class NativeCall(NamedTuple):
    """The C call ``invoke(handle, scalars, arguments)``."""

    invoke: int  # address of the function
    handle: int
    scalars: int
    arguments: Any  # a cffi pointer
    owner: Any  # the object that owns the memory of the arguments


class End(IntEnum):
    """The outcome of a call, with the values of `npurt_native_call.h`."""

    DONE = 0
    BUSY = 1
    INTERRUPTED = 2
    DROPPED = 3
    LATE = 4


class NativeCaller:
    """Makes native calls, one at a time, on the thread that runs `serve`."""

    def __init__(self) -> None:
        self._caller = ffi().gc(lib().npurt_native_new(), lib().npurt_native_free)
        if not self._caller:
            raise MemoryError
        self._call, self._wait = lib().npurt_native_call, lib().npurt_native_wait
        self._busy = lib().npurt_native_busy
        self._result = ffi().new("int64_t[3]")
        self._one = threading.Lock()
        self._last: NativeCall | None = None  # keeps the arguments of a running call alive

    def call(self, call: NativeCall, seconds: float) -> tuple[End, int, int]:
        """Make *call* on the serving thread; return its outcome and, if DONE, its result and errno.

        The outcome is BUSY if another call is running or `close` was called; *call* is then not
        made.

        Args:
            call: The call.
            seconds: The timeout.  After it, a call that has begun is LATE and continues; a call
                that has not begun is DROPPED.
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
        """Wait again after a signal; Python's signal handlers run between waits and may raise."""
        until = time.monotonic_ns() + limit
        end: int = End.INTERRUPTED
        while end == End.INTERRUPTED:
            end = self._wait(self._caller, max(0, until - time.monotonic_ns()), self._result)
        return end

    @property
    def nanoseconds(self) -> int:
        """Duration of the last call."""
        return int(self._result[2])

    def is_busy(self) -> bool:
        """Return whether a call is running or waits for the thread."""
        return bool(self._busy(self._caller))

    def serve(self) -> None:
        """Make calls on this thread until `wake` is called."""
        lib().npurt_native_serve(self._caller)

    def wake(self) -> None:
        """Make `serve` return, after the running call if there is one."""
        lib().npurt_native_wake(self._caller)

    def close(self) -> None:
        """Refuse further calls; must run on the serving thread."""
        lib().npurt_native_close(self._caller)
