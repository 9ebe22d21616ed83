"""Test dspqueue: packets to a skel and back, with the limits and codes of the real library."""

import contextlib
import ctypes as c
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits import HANG_SECONDS
from tests.sim_fastrpc.rpc import (
    BAD_PARAMETER,
    CALLBACK,
    CDSP,
    DELAYED,
    FOREVER,
    LATE,
    MAPPED,
    NO_SUCH_MAP,
    Block,
    QueueBuffer,
    words,
)

IMPORT, CLOSE, ANSWER = 2, 3, 4  # methods of skels/packets.c
WOULD_BLOCK, CANCELLED = 0x204, 0x2E
REF, DEREF = 4, 8
SECOND = 1_000_000


class Queue:
    """A queue on the host's side."""

    def __init__(self, rpc, request=0, response=0, packet=None, error=None):
        self.rpc = rpc
        self.callbacks = (
            CALLBACK(packet) if packet else CALLBACK(),
            CALLBACK(error) if error else CALLBACK(),
        )
        handle = c.c_void_p()
        self.code = rpc.dspqueue_create(
            CDSP, 0, request, response, *self.callbacks, None, c.byref(handle)
        )
        self.handle = handle.value
        if self.code == 0:
            number = c.c_uint64()
            assert rpc.dspqueue_export(self.handle, c.byref(number)) == 0
            self.id = number.value

    def write(self, message=b"", buffers=(), timeout=0):
        given = (QueueBuffer * max(1, len(buffers)))(*buffers)
        return self.rpc.dspqueue_write(
            self.handle, 0, len(buffers), given, len(message), message, timeout
        )

    def read(self, timeout=SECOND, maximum=65536, max_buffers=64):
        flags, count, nbytes = c.c_uint32(), c.c_uint32(), c.c_uint32()
        buffers, message = (QueueBuffer * 64)(), c.create_string_buffer(65536)
        code = self.rpc.dspqueue_read(
            self.handle, c.byref(flags), max_buffers, c.byref(count), buffers, maximum,
            c.byref(nbytes), message, timeout,
        )  # fmt: skip
        return code, flags.value, list(buffers[: count.value]), message.raw[: nbytes.value]

    def peek(self, timeout=0):
        flags, count, nbytes = c.c_uint32(), c.c_uint32(), c.c_uint32()
        code = self.rpc.dspqueue_peek(
            self.handle, c.byref(flags), c.byref(count), c.byref(nbytes), timeout
        )
        return code, flags.value, count.value, nbytes.value

    def stat(self, what):
        value = c.c_uint64()
        code = self.rpc.dspqueue_get_stat(self.handle, what, c.byref(value))
        return code, value.value

    def close(self):
        return self.rpc.dspqueue_close(self.handle)


@pytest.fixture
def skel(rpc):
    handle = rpc.opened("packets")
    yield handle
    rpc.close(handle)


@contextlib.contextmanager
def imported(rpc, skel, callback=1, **options):
    """Return a queue that the skel has imported and answers in a callback."""
    queue = Queue(rpc, **options)
    assert queue.code == 0
    assert rpc.call(skel, IMPORT, words(queue.id, callback))[0] == 0
    yield queue
    rpc.call(skel, CLOSE)
    assert queue.close() == 0


def plus_one(message):
    return bytes((byte + 1) & 255 for byte in message)


# --- to the DSP and back --------------------------------------------------------------------------


def test_a_message_comes_back_as_the_skel_changed_it(rpc, skel):
    with imported(rpc, skel) as queue:
        for message in (b"a", b"hello dsp", bytes(range(256)) * 16):
            assert queue.write(message) == 0
            assert queue.read() == (0, 0x11, [], plus_one(message))  # MESSAGE | USER_READY


def test_buffers_are_the_same_memory_on_both_sides(rpc, skel):
    block = Block(rpc, 8192)
    block.view[4096:4099] = b"abc"
    assert block.map(MAPPED) == 0
    with imported(rpc, skel) as queue:
        assert queue.write(b"x", [QueueBuffer(block.fd, 3, 4096, 0, 0)]) == 0
        code, flags, buffers, message = queue.read()

        assert (code, flags, message) == (0, 0x13, b"y")  # MESSAGE | BUFFERS | USER_READY
        assert (buffers[0].fd, buffers[0].size, buffers[0].offset) == (block.fd, 3, 4096)
        assert buffers[0].address == block.at + 4096
        assert bytes(block.view[4096:4099]) == bytes(255 - byte for byte in b"abc")
    block.unmap()
    block.free()


def test_a_buffer_of_size_0_is_the_whole_map(rpc, skel):
    block = Block(rpc, 4096)
    block.map(MAPPED)
    with imported(rpc, skel) as queue:
        queue.write(b"", [QueueBuffer(block.fd, 0, 0, 0, 0)])
        code, flags, buffers, message = queue.read()
        assert (code, flags, buffers[0].size, message) == (0, 0x12, 4096, b"")
        assert bytes(block.view) == b"\xff" * 4096
    block.unmap()
    block.free()


def test_the_skel_can_read_by_itself(rpc, skel):
    """Without a callback, a call answers packets while the host writes them."""
    with imported(rpc, skel, callback=0) as queue:
        for i in range(50):
            queue.write(b"packet %d" % i)
        assert rpc.call(skel, ANSWER, words(50, SECOND))[0] == 0
        for i in range(50):
            assert queue.read()[3] == plus_one(b"packet %d" % i)
        assert rpc.call(skel, ANSWER, words(1, 2000))[0] == 0x8000040C
        assert rpc.call(skel, ANSWER, words(1, 0))[0] == WOULD_BLOCK


def test_packets_wrap_around_and_are_never_mixed_up(rpc, skel):
    """The sizes have every remainder, and a ring has space for a few packets."""
    with imported(rpc, skel, request=512, response=512) as queue:

        @given(st.lists(st.integers(0, 230), min_size=1, max_size=40))
        def check(sizes):
            waiting = []
            for i, size in enumerate(sizes):
                message = bytes((i + k) & 255 for k in range(size))
                while queue.write(message) == LATE:
                    assert queue.read()[3] == waiting.pop(0)
                waiting.append(plus_one(message))
            for message in waiting:
                assert queue.read()[3] == message

        check()


def test_the_packet_callback_runs_when_packets_arrive(rpc, skel):
    arrived, seen = threading.Event(), []

    def packet(handle, error, context):
        code, _, _, message = queue.read(timeout=0)
        if code == 0:
            seen.append((handle, error, context, message))
            arrived.set()

    with imported(rpc, skel, packet=packet) as queue:
        queue.write(b"ping")
        assert arrived.wait(HANG_SECONDS)
        assert seen == [(queue.handle, 0, None, b"qjoh")]


# --- limits and codes -----------------------------------------------------------------------------


def test_an_empty_queue_would_block_and_a_wait_for_it_ends(rpc, skel):
    with imported(rpc, skel) as queue:
        assert queue.read(timeout=0)[0] == LATE
        assert queue.read(timeout=1000)[0] == LATE
        assert queue.peek()[0] == LATE


def test_a_full_queue_would_block_and_a_wait_for_it_ends(rpc, skel):
    with imported(rpc, skel, callback=0, request=256) as queue:
        written = 0
        while queue.write(b"x" * 40) == 0:
            written += 1

        assert written == (256 - 8) // 48
        assert queue.write(b"x" * 40, timeout=1000) == LATE
        assert queue.stat(3) == (0, written)
        assert queue.stat(4) == (0, written * 48)
        assert queue.stat(7) == (0, 100)


def test_a_packet_must_fit(rpc, skel):
    """A message of 65536 bytes does not fit the default queue of that size: it has a header."""
    with imported(rpc, skel, callback=0) as queue:
        assert queue.write(b"x" * 65537) == BAD_PARAMETER
        assert queue.write(b"x" * 65536) == BAD_PARAMETER
        assert queue.write(b"x" * (65536 - 16)) == 0
        assert queue.write(b"", [QueueBuffer()] * 65) == BAD_PARAMETER


def test_a_reader_without_room_keeps_the_packet(rpc, skel):
    with imported(rpc, skel) as queue:
        queue.write(b"hello")
        while queue.peek()[0] == LATE:
            pass
        assert queue.read(maximum=4)[0] == BAD_PARAMETER
        assert queue.peek() == (0, 0x11, 0, 5)
        assert queue.read()[3] == b"ifmmp"


def test_buffers_must_be_mapped_and_inside(rpc, skel):
    block = Block(rpc, 4096)
    with imported(rpc, skel) as queue:
        assert queue.write(b"", [QueueBuffer(block.fd, 16, 0, 0, 0)]) == NO_SUCH_MAP
        block.map(DELAYED)
        for buffer in ((4097, 0), (1, 4096), (0, 1), (2**32 - 1, 2)):
            given = [QueueBuffer(block.fd, *buffer, 0, 0)]
            assert queue.write(b"", given) == BAD_PARAMETER, buffer
        assert queue.write(b"", [QueueBuffer(block.fd, 1, 0, REF | DEREF, 0)]) == BAD_PARAMETER
        assert queue.write(b"", [QueueBuffer(block.fd, 1, 0, DEREF, 0)]) == BAD_PARAMETER
    block.unmap()
    block.free()


def test_a_buffer_that_packets_refer_to_cannot_be_unmapped(rpc, skel):
    block = Block(rpc, 4096)
    block.map(MAPPED)
    with imported(rpc, skel, callback=0) as queue:
        assert queue.write(b"a", [QueueBuffer(block.fd, 1, 0, REF, 0)]) == 0
        assert block.unmap() == BAD_PARAMETER
        assert queue.write(b"b", [QueueBuffer(block.fd, 1, 0, DEREF, 0)]) == 0
        assert block.unmap() == 0
    block.free()


def test_a_queue_that_the_dsp_has_imported_cannot_be_closed(rpc, skel):
    queue = Queue(rpc)
    rpc.call(skel, IMPORT, words(queue.id, 0))

    assert queue.close() == BAD_PARAMETER
    assert rpc.call(skel, IMPORT, words(queue.id, 0))[0] == 0x8000041A
    rpc.call(skel, CLOSE)
    assert queue.close() == 0
    assert queue.close() == BAD_PARAMETER
    assert rpc.call(skel, IMPORT, words(queue.id, 0))[0] == 0x8000040E


@pytest.mark.parametrize(
    ("domain", "sizes", "code"),
    [(0, (0, 0), 0x14), (1, (0, 0), 0x14), (99, (0, 0), 0xE), (CDSP, (17 << 20, 0), 0xE),
     (CDSP, (0, 1), 0xE)],
)  # fmt: skip
def test_a_queue_that_cannot_be_has_its_code(rpc, domain, sizes, code):
    handle = c.c_void_p(5)

    got = rpc.dspqueue_create(domain, 0, *sizes, CALLBACK(), CALLBACK(), None, c.byref(handle))

    assert (got, handle.value) == (code, None)


def test_a_queue_opens_the_session_itself_or_is_not_supported(rpc):
    """The real library opens a signed PD unless the program requested an unsigned one."""
    rpc.control("present=0")
    assert Queue(rpc).code == 0x14
    rpc.control("present=1")

    queue = Queue(rpc)
    assert queue.code == 0
    assert rpc.process() > 0
    handle = rpc.opened("packets")
    assert queue.close() == 0
    rpc.close(handle)


def test_a_session_that_only_queues_use_ends_with_the_last(rpc):
    """In the real library, the queues of a domain have a separate handle."""
    queues = Queue(rpc), Queue(rpc)
    assert rpc.process() > 0

    assert queues[0].close() == 0
    assert rpc.process() > 0
    assert queues[1].close() == 0
    assert rpc.process() == -1


# --- a DSP that dies, or does not answer ----------------------------------------------------------


def test_a_queue_that_the_dsp_never_reads_times_out(rpc, skel):
    with imported(rpc, skel) as queue:
        rpc.control("queue_stuck=1")
        assert queue.write(b"lost") == 0
        assert queue.read(timeout=20_000)[0] == LATE
        rpc.control("queue_stuck=0")
        assert queue.read()[3] == plus_one(b"lost")


def test_a_skel_that_reads_by_itself_gets_nothing_either(rpc, skel):
    with imported(rpc, skel, callback=0) as queue:
        rpc.control("queue_stuck=1")
        queue.write(b"lost")
        assert rpc.call(skel, ANSWER, words(1, 5000))[0] == 0x8000040C


def test_a_read_that_waits_is_cancelled_when_the_pd_dies(rpc, skel):
    """A read without a timeout is cancelled, too; afterwards only closing works."""
    import os
    import signal

    failures = []
    queue = Queue(rpc, error=lambda handle, error, context: failures.append(error))
    rpc.call(skel, IMPORT, words(queue.id, 1))
    codes = []
    reader = threading.Thread(target=lambda: codes.append(queue.read(timeout=FOREVER)[0]))
    reader.start()
    os.kill(rpc.process(), signal.SIGKILL)
    reader.join(HANG_SECONDS)

    assert codes == [CANCELLED]
    assert queue.read(timeout=0)[0] == CANCELLED
    assert queue.read(timeout=FOREVER)[0] == CANCELLED
    assert queue.write(b"x") == CANCELLED
    rpc.control("faithful")
    assert queue.write(b"x") == 0  # the real library does not detect it
    assert queue.close() == 0
    assert failures == [CANCELLED]


def test_a_read_can_be_made_to_fail(rpc, skel):
    rpc.control("queue_read=2")
    with imported(rpc, skel) as queue:
        queue.write(b"a")
        queue.write(b"b")
        assert queue.read()[3] == b"b"
        assert queue.read()[0] == CANCELLED
        assert queue.read()[3] == b"c"


def test_a_queue_can_be_refused(rpc, skel):
    rpc.control("queue_create=1")
    assert Queue(rpc).code == 0x14
