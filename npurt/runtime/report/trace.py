"""Record traces: timelines for Perfetto or chrome://tracing, written atomically.

A run of a plan is an event.  It contains an event for each step: consecutive ops on the host, or
products or a delta net on an NPU.  A step on an NPU contains an event for each call of the device,
without verification and rescoring.  On a device that runs graphs, a run of a segment is one event.
The format is Google's Trace Event Format: a JSON array of complete events ("ph": "X") in
microseconds.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from npurt.base.files import replacing
from npurt.errors import SettingError


class TraceEvent(NamedTuple):
    """A named interval; times are from `time.perf_counter`."""

    name: str
    device: str  # "" for an event on several devices
    start: float
    seconds: float
    counts: dict[str, int]


class Trace:
    """A list of events in the order in which they ended.

    Args:
        prefix: Put before the name of each event.
    """

    def __init__(self, prefix: str = "") -> None:
        self.events: list[TraceEvent] = []
        self._prefix = prefix

    def named(self, prefix: str) -> Self:
        """Return a trace that adds its events to this trace, with *prefix* before their names."""
        other = type(self)(prefix)
        other.events = self.events
        return other

    def add(self, name: str, device: str, start: float, **counts: int) -> None:
        """Record an event that began at *start* and ends now."""
        seconds = time.perf_counter() - start
        self.events.append(TraceEvent(self._prefix + name, device, start, seconds, counts))

    @contextlib.contextmanager
    def span(self, name: str, device: str, **counts: int) -> Iterator[None]:
        """Record the body of the ``with`` statement as an event, even if the body raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, device, start, **counts)

    def to_json(self) -> str:
        """Return the events in JSON, ordered by start; the first event starts at time 0."""
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
    """Yield a trace, and write it to *path* at the end, even after an error.

    Raises:
        SettingError: The file cannot be written, which is checked before and after tracing.
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
            remedy="name a file in an existing folder with enough free space",
        ) from error
