"""Test calls: inputs, outputs, their memory and the calling thread."""

import ctypes as c
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim_fastrpc.rpc import (
    BAD_PARAMETER,
    INVERT,
    STATUS,
    VOTE,
    WORK,
    Block,
    RemoteArg,
    RemoteBuffer,
)

UNKNOWN_METHOD = 0x80000414
NO_ADDRESS = 0x10  # an unmapped address


def inverted(data):
    return bytes(255 - byte for byte in data)


@pytest.mark.parametrize("nbytes", [1, 127, 128, 129, 65536, 65537, 3_000_000])
def test_what_goes_in_by_value_comes_out_by_value(rpc, probe, nbytes):
    data = bytes(i * 7 & 255 for i in range(nbytes))

    assert rpc.call(probe, INVERT, data, nbytes) == (0, inverted(data))


def test_a_result_that_the_skel_does_not_write_is_no_zero(rpc, probe):
    """The driver does not clear its memory, either, so the result is arbitrary."""
    assert rpc.call(probe, INVERT, b"ab", 4) == (
        2,
        bytes(4),
    )  # after a failure, no outputs are copied back
    code, answer = rpc.call(probe, VOTE, None, 4)
    assert code == 0
    assert answer == b"\xa5" * 4


def test_an_unknown_method_is_the_skels_to_refuse(rpc, probe):
    assert rpc.call(probe, 30)[0] == UNKNOWN_METHOD


def test_buffers_of_no_bytes_need_no_memory(rpc, probe):
    arguments = (RemoteArg * 2)()

    assert rpc.remote_handle64_invoke(probe, INVERT << 24 | 1 << 16 | 1 << 8, arguments) == 0


def test_memory_of_rpcmem_is_passed_as_it_is(rpc, probe):
    """Both buffers are in one block, so the program sees the bytes that the skel writes."""
    block = Block(rpc, 100_000)
    block.view[:5] = b"hello"
    before = rpc.process()

    code, _ = rpc.call(probe, INVERT, (block.at, 5), (block.at + 50_000, 5))

    assert code == 0
    assert bytes(block.view[50_000:50_005]) == inverted(b"hello")
    assert rpc.process() == before
    block.free()


def test_memory_of_the_program_that_it_registered_is_passed_as_it_is(rpc, probe):
    import mmap
    import os

    fd = os.memfd_create("own")
    os.ftruncate(fd, 8192)
    with mmap.mmap(fd, 8192) as own:
        at = c.addressof((c.c_uint8 * 8192).from_buffer(own))
        rpc.remote_register_buf_attr2(at, 8192, fd, 0)
        own[:3] = b"abc"

        code, _ = rpc.call(probe, INVERT, (at, 3), (at + 4096, 3))

        assert (code, own[4096:4099]) == (0, inverted(b"abc"))
        rpc.remote_register_buf_attr2(at, 8192, -1, 0)
    os.close(fd)


def test_a_buffer_that_runs_past_its_block_is_refused(rpc, probe):
    block = Block(rpc, 4096)

    assert rpc.call(probe, INVERT, (block.at + 4000, 97), 97)[0] == BAD_PARAMETER
    assert rpc.call(probe, INVERT, (block.at + 4000, 96), 96)[0] == 0
    assert rpc.call(probe, INVERT, b"x" * 97, (block.at + 4000, 97))[0] == BAD_PARAMETER
    block.free()


@pytest.mark.parametrize("direction", [0, 1])
def test_an_address_that_is_none_fails_the_call_and_not_the_program(rpc, probe, direction):
    buffers = [b"abcd", 4]
    buffers[direction] = (NO_ADDRESS, 4)

    assert rpc.call(probe, INVERT, *buffers)[0] == BAD_PARAMETER
    assert rpc.remote_handle64_invoke(probe, INVERT << 24 | 1 << 16, NO_ADDRESS) == BAD_PARAMETER
    assert rpc.call(probe, INVERT, b"abcd", 4) == (0, inverted(b"abcd"))


def test_a_block_freed_and_made_again_is_another(rpc, probe):
    """Descriptors are reused at once, so their numbers must not identify cached data."""
    for fill in (1, 2, 3):
        block = Block(rpc, 8192)
        c.memset(block.at, fill, 8192)
        assert rpc.call(probe, INVERT, (block.at, 8192), 8192) == (0, bytes([255 - fill]) * 8192)
        block.free()


def test_calls_of_many_threads_run_at_once(rpc, probe):
    """With more threads than channels of the simulator, each thread gets its own answers."""
    wrong = []

    def work(number):
        for i in range(20):
            data = bytes([number, i]) * 50
            if rpc.call(probe, INVERT, data, 100) != (0, inverted(data)):
                wrong.append((number, i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


# --- packets --------------------------------------------------------------------------------------


def test_packets_of_a_call_are_those_the_skel_executed(rpc, probe):
    """In a loop of one packet, ten thousand more iterations are ten thousand more packets."""
    counts = []
    for iterations in (1000, 11_000, 1000):
        rpc.call_words(probe, WORK, iterations)
        counts.append(rpc.packets(probe))

    assert counts[0] == counts[2]
    assert counts[1] - counts[0] == 10_000


def test_packets_do_not_depend_on_the_neighbours(rpc, probe):
    """Packets are counted while other threads load both CPUs and make calls on other channels."""
    rpc.call_words(probe, WORK, 5000)
    alone = rpc.packets(probe)
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=spin) for _ in range(4)]
    for thread in threads:
        thread.start()
    counts = set()
    for _ in range(20):
        rpc.call_words(probe, WORK, 5000)
        counts.add(rpc.packets(probe))
    stop.set()
    for thread in threads:
        thread.join()

    assert counts == {alone}


def test_the_total_is_the_sum_of_the_calls(rpc, probe):
    before = rpc.npurt_sim_total_packets(3)
    total = 0
    for i in range(5):
        rpc.call_words(probe, STATUS, i)
        total += rpc.packets(probe)

    assert rpc.npurt_sim_total_packets(3) - before == total


# --- garbage --------------------------------------------------------------------------------------

scalars = st.integers(0, 2**32 - 1)
pointers = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 4096, 2**47 - 8, 2**63]))
sizes = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1), st.just(2**31))


def test_garbage_never_harms_the_program(rpc, probe):
    """Any scalars and pointers give a code, and the next valid call works."""

    @given(scalars, st.lists(st.tuples(pointers, sizes), max_size=8))
    def check(scalars, buffers):
        arguments = (RemoteArg * 540)()
        for argument, (at, nbytes) in zip(arguments, buffers, strict=False):
            argument.buffer = RemoteBuffer(at, nbytes)
        method = (
            INVERT if scalars & 1 << 24 else 31
        )  # the other methods use their arguments unchecked

        rpc.remote_handle64_invoke(probe, scalars & ~(31 << 24) | method << 24, arguments)

        assert rpc.call(probe, INVERT, b"ok", 2) == (0, inverted(b"ok"))

    check()


def test_handles_of_garbage_are_refused(rpc, probe):
    for handle in (probe + 1, probe ^ 0x40, probe << 1, probe & 0xFFFFFFFF):
        assert rpc.call(handle, INVERT, b"ab", 2)[0] == 0x8000042C
