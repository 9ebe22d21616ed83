"""Traces: a timeline for Perfetto or chrome://tracing, written whole or not at all.

There are three kinds of events, one inside the other: a run of a plan; its steps (consecutive ops
on the host, or products or a delta net on an NPU); and in those the calls of a device, without
verification and rescoring.  A run of a segment on a device that runs graphs is one event.  The
format is Google's Trace Event Format: a JSON array of complete events ("ph": "X") in microseconds.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from npurt.errors import SettingError
from npurt.files import replacing


class Event(NamedTuple):
    """A named interval.  Times are those of `time.perf_counter`."""

    name: str
    device: str  # "" for what is on several
    start: float
    seconds: float
    counts: dict[str, int]


class Trace:
    """A list of events in the order in which they ended.

    Args:
        prefix: The beginning of each name.
    """

    def __init__(self, prefix: str = "") -> None:
        self.events: list[Event] = []
        self._prefix = prefix

    def named(self, prefix: str) -> Self:
        """Return a trace that adds its events here, with *prefix* before their names."""
        other = type(self)(prefix)
        other.events = self.events
        return other

    def add(self, name: str, device: str, start: float, **counts: int) -> None:
        """Record an event that began at *start* and ends now."""
        seconds = time.perf_counter() - start
        self.events.append(Event(self._prefix + name, device, start, seconds, counts))

    @contextlib.contextmanager
    def span(self, name: str, device: str, **counts: int) -> Iterator[None]:
        """Record the body of the ``with`` statement as an event, even when it fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, device, start, **counts)

    def to_json(self) -> str:
        """Return the events in the order of their beginnings, the first at time 0."""
        events = sorted(self.events, key=lambda event: (event.start, -event.seconds))
        zero = events[0].start if events else 0.0
        told = [
            {
                "name": event.name,
                "cat": event.device or "plan",
                "ph": "X",
                "ts": 1e6 * (event.start - zero),
                "dur": 1e6 * event.seconds,
                "pid": 1,
                "tid": 1,
                "args": event.counts,
            }
            for event in events
        ]
        return json.dumps(told)


@contextlib.contextmanager
def written_to(path: str | os.PathLike[str]) -> Iterator[Trace]:
    """Yield a trace, and write it to *path* at the end, also after an error.

    Raises:
        SettingError: The file cannot be written.  This is tried before tracing begins.
    """
    target, trace, whole = Path(path), Trace(), contextlib.ExitStack()
    with _failing(target):
        file = whole.enter_context(replacing(target))
    try:
        yield trace
    finally:
        with _failing(target), whole:
            file.write(trace.to_json().encode())


@contextlib.contextmanager
def _failing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SettingError(
            f"cannot write a trace to {target}: {error.strerror or error}",
            remedy="name a file in a folder that exists and has room for it",
        ) from error
