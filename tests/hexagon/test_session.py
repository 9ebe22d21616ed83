"""Test that a session opens completely or not at all, and always ends."""

import contextlib
import errno
import gc
import os
import subprocess
import sys
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
from npurt.hexagon.fastrpc.control import session_pool
from npurt.hexagon.fastrpc.handle import Handle
from npurt.hexagon.fastrpc.lib import load
from npurt.hexagon.fastrpc.rpcmem import allocate
from npurt.hexagon.session.session import Session
from tests.hexagon.fake import echo
from tests.limits import HANG_SECONDS, SOON, eventually, interrupt


@pytest.fixture
def session(fake):
    with contextlib.closing(Session.open(fake.library, deadline=HANG_SECONDS)) as opened:
        yield opened


def mapped_bytes(session):
    """Return the bytes of all blocks that are mapped."""
    return sum(block.nbytes for block in session._owned.blocks.values())


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
    """The library returns success for unknown handles and does nothing; here, for every call."""
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

    with pytest.raises(DriverError, match="protocol 9, and npurt has 3"):
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
        assert session.slot.session == 0  # it was released


@pytest.mark.parametrize("code", [0x14, 0x200])
def test_a_wish_for_low_latency_need_not_be_granted(fake, code):
    fake.answer("control", code, times=-1)

    Session.open(fake.library, deadline=HANG_SECONDS).close()


# --- Closing --------------------------------------------------------------------------------------


def test_closing_takes_maps_then_the_handle_then_memory_and_only_once(fake, session):
    block = allocate(fake.library, 8192)
    session.map(block)
    assert mapped_bytes(session) == 8192
    del block
    gc.collect()
    assert fake.count("free") == 0  # the session retains memory that the DSP may write

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
    """Call *work* in a fork; return its result as a number, or 99 for an exception."""
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
    assert (fake.count("close"), fake.count("free")) == (0, 0)  # the call may still be running

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
    assert fake.count("munmap") == 1  # the half that was open
    assert mapped_bytes(session) == 0

    fake.answer("mmap", 1)
    fake.answer("invoke2", 0x8000042C)
    with pytest.raises(DeviceLost):
        session.map(block)
    assert not session.alive


def test_a_block_can_be_taken_from_the_dsp_first_by_our_code(fake, session):
    block = allocate(fake.library, 4096)
    session.map(block)
    session.free(block)

    assert (fake.count("invoke5"), fake.count("munmap"), mapped_bytes(session)) == (1, 1, 0)


def test_the_number_of_a_closed_session_is_the_librarys_again(simulator):
    """Another user in the process may have this number then, and npurt uses a different one."""
    library = load([lib.simulator()])
    sessions = session_pool(library)
    Session.open(library, session=1, deadline=HANG_SECONDS).close()

    theirs = sessions._reserve("cdsp")
    assert theirs.session == 1
    others = [sessions.acquire() for _ in range(3)]
    assert sorted(slot.session for slot in others) == [0, 2, 3]
    for slot in others:
        sessions.release(slot)
    sessions._known["cdsp"].append(theirs)  # the number remains reserved
