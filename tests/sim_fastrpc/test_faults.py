"""Test requested and other faults: calls return the known codes at once."""

import os
import signal
import struct
import threading
import time

import pytest

from tests.limits import HANG_SECONDS, eventually
from tests.sim_fastrpc.rpc import (
    ABOUT,
    CRASH,
    INVERT,
    KEEP,
    MAPPED,
    SLEEP,
    STATUS,
    SUM_MAPPED,
    VOTE,
    Block,
)

RESET, IN_FLIGHT, GONE = 0x68, 0x8000040D, 0x27
NULL, MINUS_ONE = None, 2**64 - 1


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("wrong_arch=1", 0x80000406),
        ("no_symbol=1", 0x80000442),
        ("open=1", 0x80000406),
        ("open=1:0x80000416", 0x80000416),
        ("start=1", 0xFFFFFFFF),
        ("start=1:0x72", 0x72),
    ],
)
def test_an_open_can_be_made_to_fail_once(rpc, fault, code):
    rpc.control(fault)

    assert rpc.open("probe") == (code, 0)
    assert (rpc.process() == -1) == fault.startswith("start")
    assert rpc.close(rpc.opened("probe")) == 0
    assert rpc.process() == -1


def test_faults_come_at_the_time_that_was_asked_for(rpc, probe):
    rpc.control("invoke=3:0x8000042c")
    codes = [rpc.call_words(probe, STATUS, 0)[0] for _ in range(5)]
    assert codes == [0, 0, 0x8000042C, 0, 0]

    rpc.control("invoke=2+:7")
    assert [rpc.call_words(probe, STATUS, 0)[0] for _ in range(4)] == [0, 7, 7, 7]
    rpc.control("invoke=0")
    assert rpc.call_words(probe, STATUS, 0)[0] == 0


def test_memory_can_run_out_in_both_ways_of_the_real_library(rpc):
    rpc.control("no_memory=2,bad_memory=3")

    got = [rpc.rpcmem_alloc(25, 1, 4096) for _ in range(4)]

    assert got[0] not in (NULL, MINUS_ONE)
    assert got[1:3] == [NULL, MINUS_ONE]
    assert got[3] not in (NULL, MINUS_ONE)
    assert rpc.rpcmem_to_fd(MINUS_ONE) == -1
    for at in got:
        rpc.rpcmem_free(at)


def test_a_map_can_be_refused(rpc, probe):
    block = Block(rpc, 4096)
    rpc.control("map=1,map=1:0x1a")
    assert block.map() == 0x1A
    assert block.map() == 0
    block.unmap()
    block.free()


def test_a_reply_can_be_late(rpc, probe):
    """The reply waits for the given time, but ends at once if the process dies."""
    rpc.control("delay=1:300")
    start = time.monotonic()
    assert rpc.call_words(probe, STATUS, 0)[0] == 0
    assert time.monotonic() - start >= 0.3

    rpc.control("delay=1:3600000")
    codes = []
    caller = threading.Thread(target=lambda: codes.append(rpc.call_words(probe, STATUS, 0)[0]))
    caller.start()
    os.kill(rpc.process(), signal.SIGKILL)
    caller.join(HANG_SECONDS)
    assert codes[0] in (
        IN_FLIGHT,
        0x27,
    )  # the second code if the process died before the call began


def test_votes_for_power_can_be_refused(rpc):
    rpc.control("power=0")
    handle = rpc.opened("probe")
    assert rpc.call(handle, VOTE)[0] == 0x80000414
    rpc.close(handle)


# --- one wrong byte -------------------------------------------------------------------------------


def test_one_byte_of_a_result_by_value_is_wrong(rpc, probe):
    rpc.control("wrong_byte=2")
    data = bytes(range(100))
    right = rpc.call(probe, INVERT, data, 100)[1]

    code, wrong = rpc.call(probe, INVERT, data, 100)

    assert code == 0
    assert [i for i in range(100) if right[i] != wrong[i]] == [51]
    assert rpc.call(probe, INVERT, data, 100)[1] == right


def test_one_byte_of_what_the_skel_wrote_into_mapped_memory_is_wrong(rpc, probe):
    """The fault changes the top byte of the middle word: the sign or exponent of a float."""
    block = Block(rpc, 65536)
    for i in range(65536):
        block.view[i] = i & 255
    block.map(MAPPED)
    rpc.call(probe, INVERT, (block.at, 400), (block.at + 4096, 400))
    right = bytes(block.view)
    for i in range(400):
        block.view[4096 + i] = 0
    rpc.control("wrong_byte=1")

    rpc.call(probe, INVERT, (block.at, 400), (block.at + 4096, 400))

    wrong = [i for i in range(65536) if block.view[i] != right[i]]
    assert len(wrong) == 1
    assert wrong[0] % 4 == 3
    assert 4096 <= wrong[0] < 4496
    block.unmap()
    block.free()


# --- a PD that dies -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["skel", "fault", "kill", "exception"])
def test_a_pd_that_dies_fails_its_calls_and_comes_back_after_the_last_close(rpc, how):
    first, second = rpc.opened("probe"), rpc.opened("probe")
    if how == "skel":
        assert rpc.call_words(first, CRASH, 0)[0] == IN_FLIGHT
    elif how == "fault":
        rpc.control("crash=1")
        assert rpc.call_words(first, STATUS, 0)[0] == IN_FLIGHT
    else:
        caller = sleeper(rpc, first)
        if how == "kill":
            os.kill(rpc.process(), signal.SIGKILL)
        else:
            assert rpc.remote_session_control(9, struct.pack("<i", 3), 4) == 0
        assert caller() in (IN_FLIGHT, GONE)  # the call may have been too late

    assert rpc.call_words(second, STATUS, 0)[0] == GONE
    assert rpc.open("probe") == (GONE, 0)
    assert rpc.close(first) == GONE
    assert rpc.open("probe") == (GONE, 0)
    assert rpc.close(second) == 0  # the last close makes no call to the DSP
    again = rpc.opened("probe")
    assert rpc.call_words(again, STATUS, 0)[0] == 0
    assert rpc.close(again) == 0


def sleeper(rpc, handle):
    """Start a call that only a fault ends; return a function that waits for its code."""
    codes = []
    caller = threading.Thread(target=lambda: codes.append(rpc.call_words(handle, SLEEP, 2**31)[0]))
    caller.start()
    time.sleep(0.02)

    def wait():
        caller.join(HANG_SECONDS)
        return codes[0]

    return wait


def test_every_thread_that_waits_is_told(rpc, probe):
    callers = [sleeper(rpc, probe) for _ in range(8)]
    time.sleep(0.05)

    os.kill(rpc.process(), signal.SIGKILL)

    assert {caller() for caller in callers} <= {IN_FLIGHT, GONE}


def test_what_the_pd_said_last_is_told_with_its_death(rpc, probe):
    block = Block(rpc, 4096)
    block.map(MAPPED)
    rpc.call_words(
        probe, KEEP, block.fd, 4096
    )  # refused with a message, because the block is mapped already
    rpc.call_words(probe, CRASH, 0)

    assert "died: Segmentation fault" in rpc.error()
    assert "HAP_mmap_get" in rpc.error()
    block.free()


def test_maps_of_a_dead_pd_fail_and_its_memory_stays(rpc):
    handle, block, other = rpc.opened("probe"), Block(rpc, 4096), Block(rpc, 4096)
    block.view[0] = 5
    block.map()
    rpc.call_words(handle, CRASH, 0)

    assert block.unmap() == 1
    assert block.map() == 0x1A  # the library's own list comes first
    assert other.map() == 1
    assert block.view[0] == 5
    rpc.close(handle)
    handle = rpc.opened("probe")
    assert block.map() == 0
    assert rpc.call_words(handle, SUM_MAPPED, block.fd, 4096, 0, capacity=1) == (0, (5,))
    rpc.close(handle)
    block.free()
    other.free()


def test_one_pd_that_dies_takes_no_other_with_it(rpc):
    first, second = rpc.opened("probe"), rpc.opened("probe", rest="&_dom=cdsp&_session=1")
    rpc.call_words(first, CRASH, 0)

    assert rpc.call_words(second, STATUS, 0)[0] == 0
    rpc.close(first)
    rpc.close(second)


# --- the DSP restarts -----------------------------------------------------------------------------


def test_a_restart_of_the_dsp_resets_every_session_and_it_comes_back(rpc):
    first, second = rpc.opened("probe"), rpc.opened("probe", rest="&_dom=cdsp&_session=1")
    rpc.control("ssr=1:300")

    assert rpc.call_words(first, STATUS, 0)[0] == RESET
    while rpc.process(11) > 0:
        time.sleep(0.001)
    assert rpc.call_words(second, STATUS, 0)[0] == RESET
    assert rpc.open("probe") == (RESET, 0)
    assert rpc.close(first) == 0
    assert rpc.close(second) == 0
    assert rpc.open("probe")[0] == 0x72  # the node does not exist yet
    assert eventually(lambda: rpc.open("probe")[0] != 0x72)
    handle = rpc.opened("probe")
    assert rpc.call(handle, ABOUT, None, 8)[1][0] == 2
    rpc.close(handle)
    rpc.close(handle - 0x40)


def test_a_last_close_right_after_a_restart_succeeds(rpc):
    """The process of the session is killed, but its end may not have been noticed yet."""
    handle = rpc.opened("probe")
    rpc.control("ssr=1:100")

    assert rpc.call_words(handle, STATUS, 0)[0] == RESET
    assert rpc.close(handle) == 0
    opened = []
    assert eventually(lambda: opened.append(rpc.open("probe")) or opened[-1][0] != 0x72)
    assert opened[-1][0] == 0
    assert rpc.close(opened[-1][1]) == 0
