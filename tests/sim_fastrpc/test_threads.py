"""Test QuRT threads and synchronisation: sums are right, and packets are the same every time."""

import threading

import pytest

METHODS = {"join": 2, "barriers": 3, "semaphores": 4, "signals": 5, "futex": 6}
ROUNDS = {"join": 1, "barriers": 20, "semaphores": 20, "signals": 1, "futex": 1}
SHARE, THREADS = 1000, 4


@pytest.fixture
def threads(rpc):
    handle = rpc.opened("threads")
    yield handle
    rpc.close(handle)


@pytest.mark.parametrize("how", METHODS)
def test_threads_add_up(rpc, threads, how):
    wanted = SHARE * THREADS * ROUNDS[how]

    for _ in range(10):
        code, sums = rpc.call(threads, METHODS[how], None, 4)
        assert (code, int.from_bytes(sums, "little")) == (0, wanted)


@pytest.mark.parametrize("how", ["join", "barriers", "semaphores", "signals"])
def test_packets_of_threads_do_not_depend_on_their_timing(rpc, threads, how):
    """The machine is busy meanwhile, so threads wait in every order."""
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            sum(range(1000))

    neighbours = [threading.Thread(target=spin) for _ in range(3)]
    for neighbour in neighbours:
        neighbour.start()
    counts = set()
    for i in range(15):
        assert rpc.call(threads, METHODS[how], None, 4)[0] == 0
        if i:  # the first call also executed code that later calls need not repeat
            counts.add(rpc.packets(threads))
    stop.set()
    for neighbour in neighbours:
        neighbour.join()

    assert len(counts) == 1
    assert counts.pop() >= SHARE * THREADS * ROUNDS[how]


def test_calls_at_once_have_threads_each(rpc, threads):
    """The threads of a call use stacks of the skel, so only one such call runs at a time."""
    for how in METHODS:
        assert rpc.call(threads, METHODS[how], None, 4)[0] == 0


def test_a_mutex_that_was_never_made_ends_the_pd(rpc, threads):
    assert rpc.call(threads, 7)[0] == 0x8000040D
    assert "qurt_mutex" in rpc.error() or "mutex" in rpc.error()


def test_joining_a_thread_that_is_none_has_qurts_code(rpc, threads):
    assert rpc.call(threads, 8)[0] == 30  # QURT_ENOTHREAD
