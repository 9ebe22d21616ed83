"""What ran when: a timeline for Perfetto or chrome://tracing, written whole or not at all.

Three kinds of events, one inside the other: a run of a plan, its steps (consecutive ops on the
host; products or a delta net elsewhere), and in those the calls of a device, without checks and
what is computed again.  The format is Google's Trace Event Format: complete events ("ph": "X") in
microseconds, as a JSON array.
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
    """What took a while.  Times are `time.perf_counter`'s."""

    name: str
    device: str  # "" for what is on several
    start: float
    seconds: float
    counts: dict[str, int]


class Trace:
    """Events as they end.

    Args:
        prefix: What the name of each begins with.
    """

    def __init__(self, prefix: str = "") -> None:
        self.events: list[Event] = []
        self._prefix = prefix

    def named(self, prefix: str) -> Self:
        """Return a trace whose events are among these, under names that begin with *prefix*."""
        other = type(self)(prefix)
        other.events = self.events
        return other

    def add(self, name: str, device: str, start: float, **counts: int) -> None:
        """Take note of what began at *start* and ends now."""
        seconds = time.perf_counter() - start
        self.events.append(Event(self._prefix + name, device, start, seconds, counts))

    @contextlib.contextmanager
    def span(self, name: str, device: str, **counts: int) -> Iterator[None]:
        """Take note of what is done meanwhile, even when it fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, device, start, **counts)

    def to_json(self) -> str:
        """Return the events in the order they began; the first begins at 0."""
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
    """Yield a trace, and write it to *path* at the end, however that comes.

    Raises:
        SettingError: The file cannot be written, which is tried before anything is traced.
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
