"""Test host caches: DMA_BUF_IOCTL_SYNC is answered and counted, and its omission is detected."""

import ctypes as c
import errno
import os

import pytest

from tests.sim_fastrpc.rpc import DELAYED, INVERT, KEEP, MAPPED, SUM_GOT, SUM_MAPPED, Block

SYNC = 1 << 30 | 8 << 16 | ord("b") << 8  # _IOW('b', 0, __u64) of linux/dma-buf.h
READ, WRITE, BOTH, START, END = 1, 2, 3, 0, 4
NBYTES = 100_000
WHOLE = 102_400  # in pages


def sync(rpc, fd, flags):
    """Return the errno of DMA_BUF_IOCTL_SYNC, 0 for success."""
    c.set_errno(0)
    result = rpc.ioctl(fd, SYNC, c.byref(c.c_uint64(flags)))
    return c.get_errno() if result else 0


def counted(rpc):
    """Return calls and bytes so far."""
    nbytes = c.c_uint64()
    return rpc.npurt_sim_syncs(c.byref(nbytes)), nbytes.value


@pytest.fixture(params=[0, 1], ids=["not coherent", "coherent"])
def coherent(request, rpc):
    rpc.control(f"coherent={request.param}")
    return request.param


@pytest.fixture
def block(rpc, coherent):
    made = Block(rpc, NBYTES)
    yield made
    made.free()


def test_every_direction_is_answered_and_counted_with_all_of_the_block(rpc, block):
    calls, nbytes = counted(rpc)
    for access in (READ, WRITE, BOTH):
        assert sync(rpc, block.fd, START | access) == 0
        assert sync(rpc, block.fd, END | access) == 0
    assert counted(rpc) == (calls + 6, nbytes + 6 * WHOLE)


@pytest.mark.parametrize("flags", [0, 4, 8, 1 << 63 | 1])
def test_flags_that_the_kernel_refuses_are_refused(rpc, block, flags):
    before = counted(rpc)
    assert sync(rpc, block.fd, flags) == errno.EINVAL
    assert rpc.ioctl(block.fd, SYNC, None) == -1
    assert c.get_errno() == errno.EFAULT
    assert counted(rpc) == before


def test_what_is_no_rpcmem_goes_to_the_kernel(rpc, block):
    """A memfd is no dma-buf, and the kernel answers FIONREAD of a pipe."""
    before, fionread = counted(rpc), 0x541B
    memory = os.memfd_create("other")
    assert sync(rpc, memory, READ) == errno.ENOTTY
    assert sync(rpc, -1, READ) == errno.EBADF
    receiver, sender = os.pipe()
    os.write(sender, b"seven b")
    waiting = c.c_int()
    assert rpc.ioctl(receiver, fionread, c.byref(waiting)) == 0
    assert waiting.value == 7
    assert counted(rpc) == before
    for fd in (memory, receiver, sender):
        os.close(fd)


def test_the_dsp_sees_what_the_host_wrote_after_the_end_of_a_write(rpc, probe, block, coherent):
    block.map(DELAYED)
    block.view[4] = 7
    assert seen(rpc, probe, block) == (7 if coherent else 0)
    for flags in (START | READ, START | WRITE, END | READ):
        block.view[4] = 7
        sync(rpc, block.fd, flags)
    assert seen(rpc, probe, block) == (7 if coherent else 0)
    block.view[4] = 7
    sync(rpc, block.fd, END | WRITE)
    assert seen(rpc, probe, block) == 7
    block.view[4] = 8
    sync(rpc, block.fd, END | BOTH)
    assert seen(rpc, probe, block) == 8
    block.unmap()


def seen(rpc, probe, block):
    """Return byte 4 as the DSP sees it; SUM_MAPPED inverts the first byte that it is given."""
    code, (value,) = rpc.call_words(probe, SUM_MAPPED, block.fd, 1, 4, capacity=1)
    assert code == 0
    rpc.call_words(
        probe, SUM_MAPPED, block.fd, 1, 4, capacity=1
    )  # the second call inverts it again
    return value


def test_the_host_sees_what_the_dsp_wrote_after_the_start_of_a_read(rpc, probe, block, coherent):
    block.map(DELAYED)
    rpc.call_words(probe, SUM_MAPPED, block.fd, 1, 4, capacity=1)
    assert block.view[4] == (255 if coherent else 0)
    for flags in (START | WRITE, END | READ):
        sync(rpc, block.fd, flags)
    assert block.view[4] == (255 if coherent else 0)
    sync(rpc, block.fd, START | READ)
    assert block.view[4] == 255
    block.unmap()


def test_what_the_host_did_not_give_away_is_lost_when_it_reads(rpc, block, coherent):
    """Data in a cache line are lost if the line is invalidated before it is written back."""
    block.view[5] = 9
    sync(rpc, block.fd, START | READ)
    assert block.view[5] == (9 if coherent else 0)


@pytest.mark.parametrize(("flags", "method"), [(DELAYED, SUM_MAPPED), (MAPPED, SUM_GOT)])
def test_mapping_and_unmapping_synchronise(rpc, probe, block, flags, method):
    block.view[0] = 9
    block.map(flags)
    words = (block.fd, 1, 0) if method == SUM_MAPPED else (block.fd, 1)
    assert rpc.call_words(probe, method, *words, capacity=1) == (0, (9,))
    block.unmap()
    assert block.view[0] == (255 - 9 if method == SUM_MAPPED else 9)


def test_arguments_are_synchronised_by_the_call(rpc, probe, block):
    block.view[2000:2002] = b"ab"

    code, _ = rpc.call(probe, INVERT, (block.at + 2000, 2), (block.at + 3000, 2))

    assert code == 0
    assert bytes(block.view[3000:3002]) == bytes([255 - 97, 255 - 98])


def test_the_caches_of_both_sides_can_be_simulated_at_once(rpc, coherent):
    """The skel maintains the DSP's caches, and the host its own."""
    rpc.control("shadow=1")
    handle = rpc.opened("probe")
    block = Block(rpc, NBYTES)
    block.map(DELAYED)
    rpc.call_words(handle, KEEP, block.fd, NBYTES)
    block.view[4] = 7
    sync(rpc, block.fd, END | WRITE)
    assert seen(rpc, handle, block) == 0
    block.free()
    rpc.close(handle)
