"""Test that a dead or closed handle forwards no call."""

import errno

import pytest

from npurt.errors import (
    DeviceLost,
    DriverError,
    NpurtError,
)
from npurt.hexagon.fastrpc.handle import Handle, HandleState, Invocation
from npurt.hexagon.idl.interface import interface
from tests.hexagon.fake import echo

CALLS = ("open", "invoke", "close", "mmap", "munmap")


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
        ([], HandleState.NEW),
        (["close"], HandleState.CLOSED),
        (["open"], HandleState.OPEN),
        (["open", "invoke"], HandleState.OPEN),
        (["open", "close"], HandleState.CLOSED),
        (["open", "close", "close"], HandleState.CLOSED),
        (["open", "die"], HandleState.DEAD),
        (["open", "die", "close"], HandleState.CLOSED),
        (["open", "die", "close", "close"], HandleState.CLOSED),
    ],
)
@pytest.mark.parametrize("what", ["open", "invoke"])
def test_only_an_open_handle_is_invoked_and_only_a_new_one_opened(fake, done, state, what):
    """For other handles, the library returns success and does nothing."""
    handle = Handle(fake.library, "file:///x")
    for step in done:
        act(handle, step)
    assert handle.state is state
    allowed = {"open": HandleState.NEW, "invoke": HandleState.OPEN}[what]
    before = {call: fake.count(call) for call in CALLS}

    if state is allowed:
        act(handle, what)
        assert fake.count(what) == before[what] + 1
    else:
        with pytest.raises(NpurtError, match="refused: the handle is ") as caught:
            act(handle, what)
        assert (type(caught.value) is DeviceLost) == (state is HandleState.DEAD)
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
        (0x8000040D, DeviceLost, HandleState.DEAD),
        (0x27, DeviceLost, HandleState.DEAD),
        (0x68, DeviceLost, HandleState.DEAD),
        (0x2E, DeviceLost, HandleState.DEAD),
        (0x8000042C, DeviceLost, HandleState.DEAD),
        (0x8000040E, DriverError, HandleState.OPEN),
        (0x0E, DriverError, HandleState.OPEN),
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
    assert handle.state is HandleState.CLOSED
    handle.close()
    assert fake.count("close") == 0


def test_success_without_a_handle_is_none(fake):
    fake.answer("no handle", 1, times=-1)
    handle = Handle(fake.library, "file:///x")

    with pytest.raises(DriverError, match="file:///x"):
        handle.open()
    assert handle.state is HandleState.CLOSED


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
