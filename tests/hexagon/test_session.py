"""A session opens whole or not at all, lets no call through to a dead handle, and always ends."""

import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref

import pytest

from npurt.errors import (
    DeviceFull,
    DeviceLost,
    DeviceNotFound,
    DeviceTimeout,
    DriverError,
    NpurtError,
)
from npurt.hexagon.fastrpc import lib
from npurt.hexagon.fastrpc.caller import Caller
from npurt.hexagon.fastrpc.control import session_pool
from npurt.hexagon.fastrpc.handle import Handle, Invocation, State
from npurt.hexagon.fastrpc.lib import load
from npurt.hexagon.fastrpc.rpcmem import allocate
from npurt.hexagon.idl.interface import interface
from npurt.hexagon.session.session import Session
from tests.limits import HANG_SECONDS, SOON, eventually, interrupt

CALLS = ("open", "invoke", "close", "mmap", "munmap")


def echo():
    return Invocation(interface().method("echo").pack(5))


@pytest.fixture
def session(fake):
    with contextlib.closing(Session.open(fake.library, deadline=HANG_SECONDS)) as opened:
        yield opened


# --- Handles --------------------------------------------------------------------------------------


def act(handle, what):
    actions = {
        "open": handle.open,
        "invoke": lambda: handle.invoke(echo()),
        "close": handle.close,
        "die": lambda: handle.die("it is over"),
    }
    actions[what]()


@pytest.mark.parametrize(
    ("done", "state"),
    [
        ([], State.NEW),
        (["close"], State.CLOSED),
        (["open"], State.OPEN),
        (["open", "invoke"], State.OPEN),
        (["open", "close"], State.CLOSED),
        (["open", "close", "close"], State.CLOSED),
        (["open", "die"], State.DEAD),
        (["open", "die", "close"], State.CLOSED),
        (["open", "die", "close", "close"], State.CLOSED),
    ],
)
@pytest.mark.parametrize("what", ["open", "invoke"])
def test_only_an_open_handle_is_invoked_and_only_a_new_one_opened(fake, done, state, what):
    """The library answers success, and does nothing, for all the others."""
    handle = Handle(fake.library, "file:///x")
    for step in done:
        act(handle, step)
    assert handle.state is state
    allowed = {"open": State.NEW, "invoke": State.OPEN}[what]
    before = {call: fake.count(call) for call in CALLS}

    if state is allowed:
        act(handle, what)
        assert fake.count(what) == before[what] + 1
    else:
        with pytest.raises(NpurtError, match="refused: the handle is ") as caught:
            act(handle, what)
        assert (type(caught.value) is DeviceLost) == (state is State.DEAD)
        assert {call: fake.count(call) for call in CALLS} == before
        assert handle.state is state


def test_a_handle_is_closed_once_however_often_and_dead_ones_too(fake):
    """A second close would end the sessions of others."""
    for dead in (False, True):
        handle = Handle(fake.library, "file:///x")
        handle.open()
        if dead:
            handle.die("it is over")
        before = fake.count("close")
        for _ in range(3):
            handle.close()
        assert fake.count("close") == before + 1
    Handle(fake.library, "file:///x").close()
    assert fake.count("close") == before + 1


@pytest.mark.parametrize(
    ("code", "kind", "state"),
    [
        (0x8000040D, DeviceLost, State.DEAD),
        (0x27, DeviceLost, State.DEAD),
        (0x68, DeviceLost, State.DEAD),
        (0x2E, DeviceLost, State.DEAD),
        (0x8000042C, DeviceLost, State.DEAD),
        (0x8000040E, DriverError, State.OPEN),
        (0x0E, DriverError, State.OPEN),
    ],
)
def test_codes_of_a_dead_process_kill_the_handle_and_others_do_not(fake, code, kind, state):
    handle = Handle(fake.library, "file:///x")
    handle.open()
    fake.answer("invoke2", code, errno.EPIPE)

    with pytest.raises(kind, match=hex(code)):
        handle.invoke(echo())
    assert handle.state is state
    handle.close()
    assert fake.count("close") == 1


def test_an_open_that_fails_leaves_a_closed_handle(fake):
    fake.answer("open", 0x80000406)
    handle = Handle(fake.library, "file:///x")

    with pytest.raises(DriverError, match=r"file:///x failed with 0x80000406"):
        handle.open()
    assert handle.state is State.CLOSED
    handle.close()
    assert fake.count("close") == 0


def test_success_without_a_handle_is_none(fake):
    fake.answer("no handle", 1, times=-1)
    handle = Handle(fake.library, "file:///x")

    with pytest.raises(DriverError, match="file:///x"):
        handle.open()
    assert handle.state is State.CLOSED


def test_buffers_of_a_call_are_what_the_library_gets(fake):
    handle = Handle(fake.library, "file:///x")
    handle.open()
    call = interface().method("echo").pack(5)
    prepared = Invocation(call)
    for nonce in (5, 0xFFFF_FFFF_FFFF_FFFF, 0):
        call.repack(nonce=nonce)
        handle.invoke(prepared)
        assert call.unpack() == (nonce ^ 0x9E3779B97F4A7C15,)
    handle.close()


# --- The thread -----------------------------------------------------------------------------------


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
    with pytest.raises(DeviceLost, match="has not come back"):
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


# --- Opening --------------------------------------------------------------------------------------


def test_a_session_asks_for_an_unsigned_process_before_it_opens_our_code(fake, session):
    assert fake.opened == (
        "file:///libnpurt_skel_v68.so?npurt_skel_handle_invoke&_modver=1.0&_idlver=1.0.0"
        "&_dom=cdsp&_session=0"
    )
    assert (fake.count("session2"), fake.count("open"), fake.count("session7")) == (1, 1, 0)
    assert (session.info.arch, session.info.max_maps) == (68, 15)
    assert session.capabilities.arch == 68
    assert session.alive


def test_a_library_that_answers_without_calling_is_found_out(fake, monkeypatch):
    """Handles it does not know get success and nothing done: here, every call."""
    fake.answer("open", 0)
    original = Handle.open

    def open_wrongly(handle):
        original(handle)
        handle._number = 0x1234

    monkeypatch.setattr(Handle, "open", open_wrongly)
    with pytest.raises(DeviceLost, match="calls do not arrive"):
        Session.open(fake.library, deadline=HANG_SECONDS)
    assert fake.count("close") == 1


def test_a_skel_of_another_protocol_is_refused(fake):
    fake.answer("protocol", 6, times=-1)

    with pytest.raises(DriverError, match="protocol 9, npurt 3"):
        Session.open(fake.library, deadline=HANG_SECONDS)
    assert fake.count("close") == 1


@pytest.mark.parametrize(
    ("call", "code", "number", "kind", "word"),
    [
        ("open", 0x72, errno.ENOENT, DeviceNotFound, "fastrpc-cdsp"),
        ("open", 0x80000406, 0, DriverError, "skel"),
        ("open", 0xFFFFFFFF, errno.ETIMEDOUT, DriverError, "shell"),
        ("session2", 5, 0, DriverError, "signed"),
        ("invoke2", 0x80000414, 0, DriverError, "method"),
        ("invoke3", 0x8000040D, 0, DeviceLost, "crashed"),
    ],
)
def test_a_step_that_fails_undoes_those_before_it(fake, call, code, number, kind, word):
    fake.answer(call, code, number)

    with pytest.raises(kind, match=word):
        Session.open(fake.library, deadline=HANG_SECONDS)
    assert fake.count("close") == fake.count("open") - (call == "open")
    with contextlib.closing(Session.open(fake.library, deadline=HANG_SECONDS)) as session:
        assert session.slot.session == 0  # it was given back


@pytest.mark.parametrize("code", [0x14, 0x200])
def test_a_wish_for_low_latency_need_not_be_granted(fake, code):
    fake.answer("control", code, times=-1)

    Session.open(fake.library, deadline=HANG_SECONDS).close()


# --- Closing --------------------------------------------------------------------------------------


def test_closing_takes_maps_then_the_handle_then_memory_and_only_once(fake, session):
    block = allocate(fake.library, 8192)
    session.map(block)
    assert session.mapped_bytes == 8192
    del block
    gc.collect()
    assert fake.count("free") == 0  # the session keeps what the DSP may touch

    session.close()
    session.close()
    gc.collect()
    assert [fake.count(c) for c in ("invoke5", "munmap", "close", "free")] == [1, 1, 1, 1]
    assert not session.alive
    with pytest.raises(NpurtError):
        session.call("echo", 1)
    assert fake.count("invoke2") == 1


def test_a_session_that_is_forgotten_is_closed(fake):
    session = Session.open(fake.library, deadline=HANG_SECONDS)
    gone = weakref.ref(session)
    del session
    gc.collect()

    assert gone() is None
    assert fake.count("close") == 1


AT_EXIT = """
import atexit
from pathlib import Path
from npurt.errors import DeviceTimeout
from npurt.hexagon.session import skel
from npurt.hexagon.fastrpc.rpcmem import allocate
from npurt.hexagon.session.session import Session
from tests.hexagon.fake import Fake
skel.FOLDER = Path({folder!r})
fake = Fake(Path({path!r}))
atexit.register(lambda: print(fake.count("close"), "closed"))  # runs last
session = Session.open(fake.library, deadline={deadline})
block = allocate(fake.library, 4096)
session.map(block)
"""


def at_exit(fake, tmp_path, more=""):
    code = AT_EXIT.format(folder=str(tmp_path), path=str(fake.path), deadline=HANG_SECONDS) + more
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_session_left_open_is_closed_before_the_process_ends(fake, tmp_path):
    assert at_exit(fake, tmp_path) == ["1 closed"]


def test_a_process_with_a_lost_call_ends_all_the_same(fake, tmp_path):
    more = """
session.deadline = 0.05
fake.delay("invoke2", 3600)
try:
    session.call("echo", 1)
except DeviceTimeout as error:
    print("lost")
"""
    assert at_exit(fake, tmp_path, more) == ["lost", "0 closed"]


def forked(work):
    """Do *work* in a fork; return what it returned, as a number, or 99 for an exception."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(int(work()))
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def refused(work):
    try:
        work()
    except NpurtError as error:
        return "spawn" in error.remedy
    return False


def test_a_fork_cannot_use_the_session_and_does_not_close_it(fake, session):
    calls = [
        lambda: session.call("echo", 1),
        lambda: session._owned.handle.invoke(echo()),
        lambda: Session.open(load([str(fake.path)]), deadline=HANG_SECONDS),
    ]

    def work():
        good = sum(refused(call) for call in calls)
        session.close()
        return 10 * good + fake.count("close")

    assert forked(work) == 10 * len(calls)
    session.call("echo", 1)


# --- Losing ---------------------------------------------------------------------------------------


def test_a_call_without_an_answer_makes_the_session_dead_and_another_can_be_opened(fake):
    session = Session.open(fake.library, deadline=HANG_SECONDS)
    block = allocate(fake.library, 4096)
    session.map(block)
    session.deadline = SOON
    fake.delay("invoke2", 3600)

    with pytest.raises(DeviceTimeout, match="echo"):
        session.call("echo", 1)
    assert not session.alive
    with pytest.raises(DeviceLost):
        session.call("echo", 1)
    fake.delay("invoke2", 0)
    session.close()
    del session, block
    gc.collect()
    assert (fake.count("close"), fake.count("free")) == (0, 0)  # it may still be at work

    with contextlib.closing(Session.open(fake.library, deadline=HANG_SECONDS)) as other:
        assert other.slot.session == 1
        fake.release("invoke2")
        assert eventually(lambda: fake.count("close") == 1)
    assert eventually(lambda: not session_pool(fake.library).in_use())
    gc.collect()
    assert fake.count("free") == 1


def test_ctrl_c_during_a_call_leaves_a_working_session(fake, session):
    fake.delay("invoke2", 3600)
    interrupt(lambda: session.call("echo", 1), lambda: fake.count("invoke2") == 2)
    fake.release("invoke2")
    session.settle()
    assert fake.count("interrupted") == 0  # no signal reached the call
    fake.delay("invoke2", 0)
    session.call("echo", 1)
    assert fake.count("invoke2") == 3


def test_ctrl_c_while_opening_closes_what_was_opened(fake):
    fake.delay("open", 3600)
    interrupt(
        lambda: Session.open(fake.library, deadline=HANG_SECONDS), lambda: fake.count("open") == 1
    )
    fake.release("open")

    assert eventually(lambda: fake.count("close") == 1)
    assert fake.count("open") == 1


def test_what_cannot_be_mapped_is_no_room_while_the_dsp_answers_and_a_loss_when_not(fake, session):
    block = allocate(fake.library, 4096)
    fake.answer("mmap", 1, errno.ENOMEM)
    with pytest.raises(DeviceFull, match="4096"):
        session.map(block)
    fake.answer("invoke4", 0x80000402)
    with pytest.raises(DeviceFull):
        session.map(block)
    assert fake.count("munmap") == 1  # the half that had worked
    assert session.mapped_bytes == 0

    fake.answer("mmap", 1)
    fake.answer("invoke2", 0x8000042C)
    with pytest.raises(DeviceLost):
        session.map(block)
    assert not session.alive


def test_a_block_can_be_taken_from_the_dsp_first_by_our_code(fake, session):
    block = allocate(fake.library, 4096)
    session.map(block)
    session.free(block)

    assert (fake.count("invoke5"), fake.count("munmap"), session.mapped_bytes) == (1, 1, 0)


def test_the_number_of_a_closed_session_is_the_librarys_again(simulator):
    """Somebody else in the process may have it then, and npurt takes another."""
    library = load([lib.simulator()])
    sessions = session_pool(library)
    Session.open(library, session=1, deadline=HANG_SECONDS).close()

    theirs = sessions._reserve("cdsp")
    assert theirs.session == 1
    others = [sessions.acquire() for _ in range(3)]
    assert sorted(slot.session for slot in others) == [0, 2, 3]
    for slot in others:
        sessions.release(slot)
    sessions._known["cdsp"].append(theirs)  # it was reserved for good
