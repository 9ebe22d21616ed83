"""Make all calls of a session on one thread, with a deadline for each call.

If the DSP does not answer a call, the call blocks for ever and cannot be cancelled.  So calls run
on a separate thread, and only this thread is blocked.  The thread blocks signals: a signal that
interrupts a call in the kernel leaks the call's context and makes the library repeat the call
(qualcomm/fastrpc#347).  A session uses the same thread for all its calls, because the DSP keeps a
thread for each host thread that has ever called it.

`Caller.run` calls Python functions on the thread, in order.  `Caller.call` makes a C call through a
`NativeCaller`; it is for calls that are made many times per token.
"""

import atexit
import os
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from npurt.base.threads import start
from npurt.errors import DeviceLost, DeviceTimeout, NpurtError
from npurt.hexagon.fastrpc.native_call import End, NativeCall, NativeCaller

T = TypeVar("T")

EXIT_SECONDS = 10  # time in which the library must unload while a call hangs
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}  # caused by the thread


class _Job(Generic[T]):
    """A function to call on the thread, and later its result or its error."""

    __slots__ = ("done", "error", "given_up", "result", "work")

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.result: T
        self.error: BaseException | None = None
        self.given_up = False  # True: the deadline has passed, so the job must not begin
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
        """Return the result or raise the error; can be called once.

        The job drops its reference to the error.  The error's traceback refers to frames, and the
        frames refer to this job and all arguments: this cycle would delay their release until a
        garbage collection.
        """
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            return self.result
        finally:
            del error


def refuse_fork(process: int, what: str) -> None:
    """Raise NpurtError if the current process is a fork of *process*."""
    if process != os.getpid():
        raise NpurtError(
            f"{what} in a process forked from the one that opened the device",
            remedy="start processes with multiprocessing's 'spawn', and open the device there",
        )


class Caller:
    """Runs jobs in order on one thread.

    Raises:
        NpurtError: The system allows no further thread.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._native = NativeCaller()
        self._process = os.getpid()
        self._abandoned = False  # True: the last job may still run, although its caller has left
        self._late: Callable[[], bool] | None = None  # whether the last late job still runs
        arguments = self._jobs, self._native
        self._thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
        start(self._thread)

    @property
    def stuck(self) -> bool:
        """Whether a job that missed its deadline still runs, so that the thread runs no other."""
        return self._late is not None and self._late()

    def call(self, call: NativeCall, deadline: float, what: str) -> tuple[int, int] | None:
        """Make *call* on the thread; return its result and its errno.

        Return None if the thread is busy or has ended.  (`run` waits for a busy thread, and raises
        if the thread has ended.)

        Args:
            call: The call; it is not freed until it has ended.
            deadline: Seconds to wait.
            what: The name of the call, for the error.

        Raises:
            DeviceTimeout: The call did not end in time.  If it has not begun, it will not begin.
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
        """Call *work* on the thread; return its result or raise its error.

        Earlier jobs whose callers left, for example after Ctrl-C, end first, within the same
        deadline.

        Args:
            work: The function; it is not freed until it has ended.
            deadline: Seconds to wait.
            what: The name of the call, for the error.

        Raises:
            DeviceTimeout: *work* did not end in time.  If it has not begun, it will not begin.
            DeviceLost: An earlier job that missed its deadline still runs.
        """
        if threading.current_thread() is self._thread:
            return work()
        refuse_fork(self._process, what)
        if self.stuck:
            raise DeviceLost(
                f"{self.name}: {what} cannot be called, because an earlier call has not returned",
                remedy="open the device again, in another process if that fails",
                call=what,
                code=0x0C,
            )
        if not self._thread.is_alive():
            raise NpurtError(
                f"{self.name}: {what} cannot be called, because the session is closed",
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
        """Return the error of a call that did not end in time; *late* tells if it still runs."""
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
        """Have the kernel end this process if a hanging call keeps the library from unloading."""
        if self.stuck:
            signal.alarm(EXIT_SECONDS)

    def hang_up(self) -> None:
        """Refuse further uses of `call`; runs on the thread."""
        self._native.close()

    def settle(self, deadline: float) -> None:
        """Wait until the job of an interrupted `run` or `call` has ended.

        Raises:
            DeviceTimeout: The job did not end in time.
        """
        if self._abandoned:
            self.run(_nothing, deadline, "an interrupted call")

    def close(self, last: Callable[[], None], deadline: float) -> None:
        """Run *last* after all other jobs, then end the thread; wait for it unless it is stuck.

        Objects that *last* refers to are not freed until it has run.  If a call never returns, they
        are never freed.
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
            del job  # frees its function and result
