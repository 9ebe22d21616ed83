"""The thread of an engine: runs steps while requests are open, and calls from other threads."""

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace

from npurt.base.threads import start
from npurt.errors import NpurtError, SettingError
from npurt.llm.engine.events import Event, Stats
from npurt.llm.engine.request import Request
from npurt.llm.engine.scheduler import Scheduler
from npurt.llm.engine.sequence import Sequence
from npurt.llm.session.lock import Lock

PAUSE = 0.002  # seconds

Listener = Callable[[Items[Event]], None]
Call = Callable[[], Event | None]


class Loop:
    """The thread of an engine.

    The thread holds no reference to the engine, so that the engine can be garbage-collected.

    Args:
        scheduler: Evaluates the sequences.
        lock: The model's lock; the thread holds it until it ends.
        on_step: A function that is called with the events of each step.
    """

    def __init__(self, scheduler: Scheduler, lock: Lock, on_step: Listener | None) -> None:
        self._scheduler, self._lock, self._on_step = scheduler, lock, on_step
        self._changed = threading.Condition()
        self._calls: deque[Call] = deque()  # for the thread to call before its next step
        self._requests: dict[int, tuple[weakref.ref[Request], Sequence]] = {}
        self._ids = itertools.count(1)
        self._closing = False
        self._ready = threading.Event()
        self._error: BaseException | None = None  # the exception that ended the thread
        self._opened = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._run, name="npurt engine", daemon=True)
        self._process = os.getpid()

    def start(self, opened: contextlib.ExitStack) -> None:
        """Start the thread, which closes *opened* when it ends.

        Raises:
            NpurtError: The system allows no further thread.
            SettingError: Another thread is using the model.
        """
        self._opened = opened
        try:
            start(self._thread)
        except NpurtError:
            opened.close()
            raise
        self._ready.wait()
        if self._error:
            raise self._error

    # --- Other threads --------------------------------------------------------------------------

    def new_id(self) -> int:
        """Return a new request id."""
        return next(self._ids)

    def submit(self, request: Request, sequence: Sequence) -> None:
        """Submit a sequence.

        Without *on_step*, the sequence is cancelled when *request* is garbage-collected.

        Raises:
            NpurtError: The sequence can never be evaluated, or the engine is closed.
        """
        self._scheduler.require_fit(sequence)

        def dropped(_: object) -> None:
            self._try_to_call(lambda: self._scheduler.cancel(sequence))

        unread = None if self._on_step else dropped

        def begin() -> Event | None:
            self._requests[request.id] = weakref.ref(request, unread), sequence
            return self._scheduler.submit(sequence)

        self._call(begin)

    def cancel(self, request: Request) -> None:
        """Cancel the sequence of *request*, unless it has ended."""

        def end() -> Event | None:
            own, sequence = self._requests.get(request.id, (None, None))
            return (
                self._scheduler.cancel(sequence) if own and sequence and own() is request else None
            )

        self._try_to_call(end)

    def require_process(self) -> None:
        """Check that the thread is in this process: a forked process has no copy of it.

        Raises:
            SettingError: This process was forked from the one that opened the engine.
        """
        if self._process != os.getpid():
            raise SettingError(
                "this engine is of the process from which this one was forked",
                remedy="open an engine in this process, or start processes with multiprocessing's "
                "'spawn'",
            )

    def _try_to_call(self, call: Call) -> None:
        """Do as `_call`, but do nothing if the engine is closed: its sequences have ended."""
        with contextlib.suppress(SettingError):
            self._call(call)

    def stats(self) -> Stats:
        """Return the state of the scheduler between two steps.

        Raises:
            SettingError: The engine is closed.
        """
        found: list[Stats] = []
        done = threading.Event()

        def ask() -> None:
            found.append(self._scheduler.stats())
            done.set()

        self.require_process()
        if threading.current_thread() is self._thread:
            return self._scheduler.stats()
        self._call(ask)
        while not done.wait(1):
            if not self._thread.is_alive():
                raise SettingError("this engine is closed", remedy="open another one")
        return found[0]

    def _call(self, call: Call) -> None:
        """Let the thread call *call* before its next step.

        Raises:
            SettingError: The engine is closed, or of another process.
        """
        self.require_process()
        with self._changed:
            if self._closing:
                why = f": {self._error!r:.200}" if self._error else ""
                raise SettingError(f"this engine is closed{why}", remedy="open another one")
            self._calls.append(call)
            self._changed.notify()

    def close(self) -> None:
        """End all sequences, and wait for the thread to end; do nothing in a forked process."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._closing = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- The thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._opened, self._lock:
                self._ready.set()
                try:
                    self._work()
                    self._tell(self._scheduler.close())
                except BaseException as error:
                    self._stop(error)
                    raise
        except BaseException as error:  # noqa: BLE001  passed on to requests and to `start`
            self._error = error
        finally:
            self._ready.set()

    def _stop(self, error: BaseException) -> None:
        """End all sequences with *error*, which a listener raised or a defect of npurt caused.

        Each request gets its last event, even if other parts of this function fail.
        """
        with self._changed:
            self._error, self._closing = error, True
        while self._calls:
            with contextlib.suppress(BaseException):
                self._calls.popleft()()  # registers requests that were just submitted
        ends: dict[int, Event] = {}
        with contextlib.suppress(BaseException):
            ends = {event.id: event for event in self._scheduler.close()}
        events = [
            replace(ends.get(number, Event(number)), finish="error", error=error)
            for number in self._requests
        ]
        with contextlib.suppress(BaseException):  # the listener may raise again
            self._tell(events)

    def _work(self) -> None:
        """Run steps until the engine is closed."""
        while True:
            with self._changed:
                while not (self._calls or self._closing or self._requests):
                    self._changed.wait()
                closing = self._closing
            self._tell(self._answers())
            if closing:
                return
            if self._requests:
                events = self._scheduler.step()
                self._tell(events)
                if not events:  # all sequences wait for their grammars to be parsed
                    time.sleep(PAUSE)

    def _answers(self) -> list[Event]:
        """Run the calls of other threads; return the events of sequences that they ended."""
        events = []
        while self._calls:
            if event := self._calls.popleft()():
                events.append(event)
        return events

    def _tell(self, events: Items[Event]) -> None:
        """Pass all *events* to the listener, then each event to its request."""
        try:
            if events and self._on_step:
                self._on_step(events)
        finally:
            self._tell_requests(events)

    def _tell_requests(self, events: Items[Event]) -> None:
        for event in events:
            if request := self._requests[event.id][0]():
                request.put(event)
            if event.finish:
                del self._requests[event.id]
