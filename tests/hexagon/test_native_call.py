"""Test that another thread makes each native call once, and that its result is returned.

The calls are functions of libc with known results.
"""

import contextlib
import ctypes
import errno
import os
import signal
import threading
import time

import pytest

from npurt.errors import DeviceTimeout
from npurt.hexagon.fastrpc.caller import Caller
from npurt.hexagon.fastrpc.native_call import End, NativeCall, NativeCaller, ffi
from tests.limits import HANG_SECONDS, eventually

GETTID = {"x86_64": 186, "aarch64": 178}[os.uname().machine]  # asm/unistd.h


def native(function, argument=0):
    libc = ctypes.CDLL(None)
    address = ctypes.cast(getattr(libc, function), ctypes.c_void_p).value
    return NativeCall(address, argument, 0, ffi().NULL, None)


def sleep(seconds):
    return native("usleep", int(seconds * 1e6))


def held():
    """Return a call, and the function that ends it."""
    libc = ctypes.CDLL(None)
    semaphore = ctypes.create_string_buffer(32)  # of sem_t
    libc.sem_init(semaphore, 0, 0)
    call = native("sem_wait", ctypes.addressof(semaphore))
    return call, lambda: libc.sem_post(semaphore)


@contextlib.contextmanager
def served():
    """Yield a caller and the thread that serves it."""
    caller, over = NativeCaller(), threading.Event()

    def work():
        while not over.is_set():
            caller.serve()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield caller, thread
    finally:
        over.set()
        caller.wake()
        thread.join(HANG_SECONDS)
    assert not thread.is_alive()


@pytest.fixture
def caller():
    caller = Caller("test")
    yield caller
    caller.close(lambda: None, HANG_SECONDS)
    caller._thread.join(HANG_SECONDS)


def until(true):
    assert eventually(true)


def test_a_call_returns_what_the_function_returned_and_its_errno():
    with served() as (caller, _):
        assert caller.call(native("abs", 42), HANG_SECONDS) == (End.DONE, 42, 0)
        assert caller.call(native("close", 2**32 - 1), HANG_SECONDS) == (End.DONE, -1, errno.EBADF)
        assert caller.call(native("abs", 7), HANG_SECONDS) == (End.DONE, 7, 0)


def test_a_call_is_made_by_the_thread_that_serves():
    with served() as (caller, thread):
        end, ident, _ = caller.call(native("syscall", GETTID), HANG_SECONDS)
    assert (end, ident) == (End.DONE, thread.native_id)
    assert ident != threading.get_native_id()


def test_a_call_says_how_long_it_took():
    with served() as (caller, _):
        caller.call(sleep(0.05), HANG_SECONDS)
        assert 0.05e9 <= caller.nanoseconds < 9e9


def test_a_call_that_takes_too_long_is_late_and_no_other_is_taken_until_it_ends():
    slow, end = held()
    with served() as (caller, _):
        assert caller.call(slow, 0.5)[0] == End.LATE
        assert caller.is_busy()
        assert caller.call(native("abs", 1), HANG_SECONDS)[0] == End.BUSY
        end()
        until(lambda: not caller.is_busy())
        assert caller.call(native("abs", 1), HANG_SECONDS) == (End.DONE, 1, 0)


def test_a_call_that_nobody_began_is_dropped_and_never_made():
    caller = NativeCaller()
    read, write = os.pipe()
    assert caller.call(native("close", write), 0.02)[0] == End.DROPPED
    caller.wake()
    caller.serve()
    assert os.write(write, b"x") == 1  # the call is still running
    os.close(read)
    os.close(write)


def test_a_closed_line_takes_no_call():
    caller = NativeCaller()
    caller.close()
    assert caller.call(native("abs", 1), HANG_SECONDS)[0] == End.BUSY


def test_a_call_that_waits_while_the_thread_closes_is_refused():
    caller = NativeCaller()
    timer = threading.Timer(0.1, caller.close)
    timer.start()
    assert caller.call(native("abs", 1), HANG_SECONDS)[0] == End.BUSY
    timer.join()


def test_a_signal_whose_handler_returns_changes_nothing():
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        with served() as (caller, _):
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
            result = caller.call(sleep(0.2), HANG_SECONDS)
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(seen) > 2
    assert result[0] == End.DONE


def test_two_threads_and_python_between_get_each_their_own_results(caller):
    wrong, lost = [], []

    def work(first):
        for i in range(first, first + 3000):
            answer = caller.call(native("abs", i), HANG_SECONDS, "abs")
            lost.append(answer is None)
            if answer is None:  # the other thread was first
                answer = caller.run(lambda i=i: (i, 0), HANG_SECONDS, "python")
            if answer != (i, 0):
                wrong.append((i, answer))

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 1 << 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert wrong == []
    assert len(lost) == 6000
    assert not all(lost)


def test_a_call_after_a_pause_wakes_the_thread(caller):
    for i in range(20):
        time.sleep(0.005)
        assert caller.call(native("abs", i), HANG_SECONDS, "abs") == (i, 0)


def test_the_thread_that_asks_may_run_where_it_could_before(caller):
    before = os.sched_getaffinity(0)
    for function in (native("abs", 1), sleep(0.01)):
        caller.call(function, HANG_SECONDS, "x")
        assert os.sched_getaffinity(0) == before


def test_where_somebody_else_sends_it_meanwhile_it_stays(caller):
    before, thread = os.sched_getaffinity(0), threading.get_native_id()
    two = set(sorted(before)[:2])
    seen = []

    def send():
        seen.append(os.sched_getaffinity(thread))
        os.sched_setaffinity(thread, two)

    timer = threading.Timer(0.1, send)
    timer.start()
    try:
        caller.call(sleep(0.3), HANG_SECONDS, "x")
        assert os.sched_getaffinity(0) == two
        assert len(seen[0]) == 1
    finally:
        timer.join()
        os.sched_setaffinity(0, before)


def test_a_late_call_is_given_up_and_what_is_asked_next_is_refused_until_it_ends(caller):
    slow, end = held()
    with pytest.raises(DeviceTimeout, match=r"slow did not come back within 0\.5 s"):
        caller.call(slow, 0.5, "slow")
    assert caller.stuck
    end()
    until(lambda: not caller.stuck)
    assert caller.run(lambda: 4, HANG_SECONDS, "x") == 4


def test_ctrl_c_leaves_a_call_alone_and_the_next_waits_for_it(caller):
    main = threading.get_ident()
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        caller.call(sleep(0.4), HANG_SECONDS, "slow")
    timer.join()
    assert caller.call(native("abs", 1), HANG_SECONDS, "next") is None

    caller.settle(30)
    assert time.monotonic() - start >= 0.4
    assert caller.call(native("abs", 1), HANG_SECONDS, "next") == (1, 0)


def test_jobs_and_calls_of_one_caller_run_on_one_thread(caller):
    ident = caller.run(threading.get_native_id, HANG_SECONDS, "x")
    assert caller.call(native("syscall", GETTID), HANG_SECONDS, "x") == (ident, 0)
