"""One thread makes all calls of a session; each caller says how long it waits at most.

A call that the DSP does not answer blocks for ever, and nothing cancels it.  So it is made on a
thread of its own, and only that thread is lost with it.  The thread has signals blocked: one that
interrupts a call in the kernel leaks its context and sends the call again (qualcomm/fastrpc#347).
It is one thread for good: the DSP keeps a thread for each thread that ever called it.

`Caller.run` runs any function of Python on it, one after another.  `Caller.call` makes a call of C,
through a `NativeCaller`: for calls that happen many times a token.
"""

import atexit
import os
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from npurt.errors import DeviceLost, DeviceTimeout, NpurtError
from npurt.hexagon.fastrpc.native_call import End, NativeCall, NativeCaller

T = TypeVar("T")

EXIT_SECONDS = 10  # that the library may take to unload while a call hangs
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}  # a thread's own


class _Job(Generic[T]):
    """One call: what to do, and then its result or its error."""

    __slots__ = ("done", "error", "given_up", "result", "work")

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.result: T
        self.error: BaseException | None = None
        self.given_up = False  # nobody waits for it: it must not begin any more
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            if not self.given_up:
                self.result = self.work()
        except BaseException as error:  # noqa: BLE001  handed to the thread that waits
            self.error = error
        self.done.release()

    def outcome(self) -> T:
        """Return the result, or raise the error, once: a kept error keeps its frames.

        The error is not kept: it would keep the frames that it went through, and they this job and
        all their arguments, until a garbage collection.
        """
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            return self.result
        finally:
            del error


def refuse_fork(process: int, what: str) -> None:
    """Raise NpurtError when this is not *process*, but a fork of it."""
    if process != os.getpid():
        raise NpurtError(
            f"{what} in a process forked from the one that opened the device",
            remedy="start processes with multiprocessing's 'spawn', and open the device there",
        )


class Caller:
    """Runs one job after the other.

    Raises:
        NpurtError: The system has no thread left.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._native = NativeCaller()
        self._process = os.getpid()
        self._abandoned = False  # the last job may still run: nobody waits for it
        self._late: Callable[[], bool] | None = None  # whether the job given up last still runs
        arguments = self._jobs, self._native
        self._thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise NpurtError(
                f"{name}: {error}",
                remedy="close other programs, or raise the limit that `ulimit -u` shows",
            ) from error

    @property
    def stuck(self) -> bool:
        """True while a job that was given up still runs: the thread takes no other."""
        return self._late is not None and self._late()

    def call(self, call: NativeCall, deadline: float, what: str) -> tuple[int, int] | None:
        """Have *call* made on the thread; return what it returned, and its errno.

        Returns None when the thread is busy or has ended.  `run` waits for a busy thread, and
        raises an error when the thread has ended.

        Args:
            call: Is kept, with all it refers to, until it ends.
            deadline: Seconds to wait.
            what: For the error: its name.

        Raises:
            DeviceTimeout: It did not end in time.  If it had not begun, it never will.
        """
        self._abandoned = True
        end, code, errno = self._native.call(call, deadline)
        if end == End.BUSY:
            return None
        if end != End.DONE:
            raise self._given_up(self._native.is_busy, deadline, what)
        self._abandoned = False
        return code, errno

    def run(self, work: Callable[[], T], deadline: float, what: str) -> T:
        """Return what *work* returns, or raise what it raises, from the thread.

        Jobs that were left behind, as by Ctrl-C, end first, within the same deadline.

        Args:
            work: Is kept, with all it refers to, until it ends.
            deadline: Seconds to wait.
            what: For the error: the name of the call.

        Raises:
            DeviceTimeout: It did not end in time.  If it had not begun, it never will.
        """
        if threading.current_thread() is self._thread:
            return work()
        refuse_fork(self._process, what)
        if self.stuck:
            raise DeviceLost(
                f"{self.name}: {what} cannot be called, an earlier call has not come back",
                remedy="open the device again, in another process if that fails",
                call=what,
                code=0x0C,
            )
        if not self._thread.is_alive():
            raise NpurtError(
                f"{self.name}: {what} cannot be called, it is closed",
                remedy="open the device again",
            )
        job = _Job(work)
        self._abandoned = True
        self._put(job)
        if not job.done.acquire(timeout=deadline):
            job.given_up = True
            raise self._given_up(job.done.locked, deadline, what)
        self._abandoned = False
        return job.outcome()

    def _put(self, job: _Job[Any] | None) -> None:
        self._jobs.put(job)
        self._native.wake()

    def _given_up(self, late: Callable[[], bool], deadline: float, what: str) -> DeviceTimeout:
        """Return the error of a call that did not end in time; remember how to ask for its end."""
        self._late = late
        atexit.register(self._limit_exit)
        return DeviceTimeout(
            f"{self.name}: {what} did not come back within {deadline:g} s; the device is given up",
            remedy="raise NPURT_DEADLINE if the device was only slow; a DSP that hangs is "
            "restarted through its remoteproc state, see `npurt doctor`",
            call=what,
            code=0x0C,
        )

    def _limit_exit(self) -> None:
        """Let the kernel end this process if the library cannot unload for a hanging call."""
        if self.stuck:
            signal.alarm(EXIT_SECONDS)

    def hang_up(self) -> None:
        """Take no `call` any more; on the thread."""
        self._native.close()

    def settle(self, deadline: float) -> None:
        """Wait until nothing runs that an interrupted `run` left behind.

        Raises:
            DeviceTimeout: It did not end in time.
        """
        if self._abandoned:
            self.run(_nothing, deadline, "an interrupted call")

    def close(self, last: Callable[[], None], deadline: float) -> None:
        """Run *last* after all other jobs and end the thread; wait for it unless it is stuck.

        Objects that *last* refers to stay until it has run: for ever, if a call never returns.
        """
        self._put(_Job(last))
        self._put(None)
        if not self.stuck and threading.current_thread() is not self._thread:
            self._thread.join(deadline)


def _nothing() -> None:
    pass


def _work(jobs: "queue.SimpleQueue[_Job[Any] | None]", native: NativeCaller) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    while True:
        native.serve()
        while not jobs.empty():
            job = jobs.get()
            if job is None:
                return
            job.run()
            del job  # and with it what it holds
