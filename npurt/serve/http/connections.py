"""Bound the open connections of the server, so that file descriptors remain for its own work."""

import contextlib
import logging
import os
import resource
import time
from collections.abc import Hashable
from typing import Protocol

from uvicorn.server import ServerState

from npurt.errors import SettingError

WANTED = 4096  # descriptors: about 40 MB of memory if all are idle connections
# Descriptors for everything else: to restart an engine (6), to read model files, and connections
# that are accepted before others are closed.
RESERVE = 32
ACCEPTED = 8  # connections that are accepted at once
LEAST = 8  # connections with which the server starts
REPEATED_SECONDS = 10.0  # time in which a message is logged `REPEATS` times at most
REPEATS = 5

log = logging.getLogger("npurt.serve")


class Closable(Hashable, Protocol):
    """A connection that can be closed."""

    def close(self) -> None:
        """Close the connection."""


class Connections(ServerState):
    """The open connections of a server, at most *most*.

    A connection is idle while no whole request of it is being answered.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._idle: dict[Closable, None] = {}  # the longest idle one first

    def admit(self, connection: Closable) -> bool:
        """Add a new connection, which is idle; close the longest idle one if there are too many.

        Returns:
            False if all other connections are busy: the new one must be closed.
        """
        if len(self.connections) > self._most:
            oldest = next(iter(self._idle), None)
            log.warning("more than %d connections: idle ones are closed", self._most)
            if oldest is None:
                return False
            del self._idle[oldest]
            oldest.close()
        self._idle[connection] = None
        return True

    def busy(self, connection: Closable) -> None:
        """Note that *connection* has a request that is being answered."""
        self._idle.pop(connection, None)

    def idle(self, connection: Closable) -> None:
        """Note that a request of *connection* was answered."""
        self._idle[connection] = None

    def lost(self, connection: Closable) -> None:
        """Forget a closed connection."""
        self._idle.pop(connection, None)


def most_connections(engines: int) -> int:
    """Raise the soft limit of open files; return the number of connections that it allows.

    Args:
        engines: Upper bound on the engines, each of which needs a descriptor.

    Raises:
        SettingError: The limit is too small for a server.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    most = min(soft, WANTED) - len(os.listdir("/proc/self/fd")) - RESERVE - engines
    if most < LEAST:
        raise SettingError(
            f"the limit of open files is {soft}, which leaves no descriptor for connections",
            remedy=f"raise the limit, for example with `ulimit -n {WANTED}`",
        )
    return most


class FewRepeats(logging.Filter):
    """Drops a warning or an error that was logged `REPEATS` times in `REPEATED_SECONDS`.

    Two messages are the same if they have the same format string.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[str, list[float]] = {}  # by message: the times of its last records

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log *record*."""
        if record.levelno < logging.WARNING:
            return True
        now = time.monotonic()
        message = str(record.msg).partition("\n")[0]
        times = [at for at in self._logged.get(message, ()) if now - at < REPEATED_SECONDS]
        if len(times) >= REPEATS:
            return False
        self._logged[message] = [*times, now]
        if len(times) == REPEATS - 1:
            record.msg = f"{record.msg} (repeats are not logged for {REPEATED_SECONDS:.0f} s)"
        return True


def limit_repeats() -> None:
    """Add `FewRepeats` to the loggers of the server."""
    for name in ("npurt.serve", "asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(FewRepeats())
