"""Tests of the thread that makes all calls of a session, one after another."""

import signal
import threading

import pytest

from npurt.errors import (
    DeviceLost,
    DeviceTimeout,
    NpurtError,
)
from npurt.hexagon.fastrpc.caller import Caller
from tests.limits import HANG_SECONDS, SOON, interrupt


def thread_and_mask():
    return threading.get_ident(), signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_calls_are_made_one_after_the_other_on_one_thread_without_signals():
    caller = Caller("test")
    seen = [caller.run(thread_and_mask, HANG_SECONDS, "x") for _ in range(3)]
    caller.close(lambda: None, HANG_SECONDS)

    assert len({ident for ident, _ in seen}) == 1
    assert seen[0][0] != threading.get_ident()
    assert {signal.SIGINT, signal.SIGALRM, signal.SIGCHLD, signal.SIGTERM} <= seen[0][1]
    assert signal.SIGSEGV not in seen[0][1]


def test_what_a_call_raises_is_raised_where_it_was_asked_for():
    caller = Caller("test")
    with pytest.raises(ZeroDivisionError):
        caller.run(lambda: 1 // 0, HANG_SECONDS, "x")
    assert caller.run(lambda: 4, HANG_SECONDS, "x") == 4
    caller.close(lambda: None, HANG_SECONDS)
    with pytest.raises(NpurtError, match="closed"):
        caller.run(lambda: 4, HANG_SECONDS, "x")


def test_a_call_that_does_not_come_back_is_given_up_and_others_are_refused_until_it_does():
    caller = Caller("test")
    gate, done = threading.Event(), []

    with pytest.raises(DeviceTimeout, match=r"slow did not come back within 0\.05 s"):
        caller.run(lambda: gate.wait(HANG_SECONDS), 0.05, "slow")
    assert caller.stuck
    with pytest.raises(DeviceLost, match="has not returned"):
        caller.run(lambda: done.append("no"), HANG_SECONDS, "next")

    caller.close(lambda: done.append("closed"), 0)
    assert done == []
    gate.set()
    caller._thread.join(HANG_SECONDS)
    assert done == ["closed"]
    assert not caller.stuck


def test_what_waits_behind_a_lost_call_never_begins():
    caller = Caller("test")
    begun, gate, done = threading.Event(), threading.Event(), []

    def wait():
        begun.set()
        gate.wait(HANG_SECONDS)

    interrupt(lambda: caller.run(wait, HANG_SECONDS, "slow"), begun.is_set)

    with pytest.raises(DeviceTimeout):
        caller.run(lambda: done.append("late"), SOON, "behind")
    gate.set()
    caller.close(lambda: done.append("closed"), HANG_SECONDS)
    caller._thread.join(HANG_SECONDS)

    assert done == ["closed"]


def test_ctrl_c_leaves_the_call_alone_and_the_next_waits_for_it():
    caller = Caller("test")
    begun, gate, order = threading.Event(), threading.Event(), []

    def wait():
        begun.set()
        gate.wait(HANG_SECONDS)
        order.append("first")

    interrupt(lambda: caller.run(wait, HANG_SECONDS, "slow"), begun.is_set)
    assert order == []
    gate.set()
    caller.settle(HANG_SECONDS)
    assert order == ["first"]
    caller.run(lambda: order.append("second"), HANG_SECONDS, "next")
    caller.close(lambda: None, HANG_SECONDS)
    assert order == ["first", "second"]
