"""Test the DSP's view of memory: rpcmem, maps, caches, VTCM, heap and stack."""

import ctypes as c
import threading

import pytest

from tests.sim_fastrpc.rpc import (
    BAD_PARAMETER,
    CDSP,
    DELAYED,
    DROP_KEPT,
    HEAP,
    INVERT,
    KEEP,
    MAPPED,
    NO_SUCH_MAP,
    STACK,
    STATUS,
    SUM_GOT,
    SUM_MAPPED,
    TOUCH_KEPT,
    USE_VTCM,
    Block,
)

FLUSH, INVALIDATE, NEITHER = 0, 1, 9  # operations of qurt_mem_cache_clean
PD_GONE = (0x8000040D, 0x27)
MIB = 1 << 20


@pytest.fixture
def block(rpc):
    made = Block(rpc, 100_000)
    yield made
    made.free()


# --- rpcmem ---------------------------------------------------------------------------------------


def test_rpcmem_is_whole_pages_with_a_descriptor(rpc, block):
    assert block.at % 4096 == 0
    assert block.fd >= 0
    assert rpc.rpcmem_to_fd(block.at + 4096) == -1
    assert bytes(block.view[:100]) == bytes(100)
    (c.c_uint8 * 102_400).from_address(block.at)[102_399] = 1  # rounded up to 4096


@pytest.mark.parametrize("nbytes", [0, -1, -4096])
def test_rpcmem_of_no_bytes_is_null(rpc, nbytes):
    assert rpc.rpcmem_alloc(25, 1, nbytes) is None


def test_rpcmem_is_limited(rpc):
    rpc.control("rpcmem=1M")
    first = rpc.rpcmem_alloc(25, 1, 700_000)

    assert first
    assert rpc.rpcmem_alloc(25, 1, 400_000) is None
    rpc.rpcmem_free(first)
    second = rpc.rpcmem_alloc(25, 1, MIB)
    assert second
    rpc.rpcmem_free(second)
    assert rpc.rpcmem_alloc2(25, 1, 1 << 46) is None
    assert rpc.rpcmem_alloc2(25, 1, 2**64 - 1) is None


def test_two_gib_at_once_are_refused_when_strict(rpc):
    """The real library stores sizes in an int."""
    assert rpc.rpcmem_alloc2(25, 1, 1 << 31) is None
    rpc.control("faithful")
    at = rpc.rpcmem_alloc2(25, 1, 1 << 31)
    assert at
    rpc.rpcmem_free(at)


def test_freeing_what_is_none_does_nothing(rpc):
    rpc.rpcmem_free(None)
    rpc.rpcmem_free(0x1234000)


# --- fastrpc_mmap ---------------------------------------------------------------------------------


def test_the_dsp_maps_what_the_host_announced(rpc, probe, block):
    block.view[:4] = b"\1\2\3\4"
    assert block.map(DELAYED) == 0

    assert rpc.call_words(probe, SUM_MAPPED, block.fd, 100_000, 0, capacity=1) == (0, (10,))
    assert block.view[0] == 254  # the DSP wrote into the same memory
    assert rpc.call_words(probe, SUM_MAPPED, block.fd, 2, 2, capacity=1) == (0, (7,))
    assert block.unmap() == 0
    assert rpc.call_words(probe, SUM_MAPPED, block.fd, 4, 0, capacity=1)[0] == 1000


def test_what_the_host_mapped_itself_the_dsp_gets_and_does_not_map(rpc, probe, block):
    block.view[0] = 9
    assert block.map(MAPPED) == 0

    assert rpc.call_words(probe, SUM_GOT, block.fd, 10, capacity=1) == (0, (9,))
    assert rpc.call_words(probe, SUM_MAPPED, block.fd, 10, 0, capacity=1)[0] == 1000
    assert "HAP_mmap_get" in rpc.log()
    assert block.unmap() == 0


def test_what_is_only_announced_cannot_be_got(rpc, probe, block):
    block.map(DELAYED)
    assert rpc.call_words(probe, SUM_GOT, block.fd, 10, capacity=1)[0] == 0x80000448
    block.unmap()


def test_a_part_outside_the_block_cannot_be_mapped(rpc, probe, block):
    block.map(DELAYED)
    for nbytes, offset in ((100_001, 0), (1, 100_000), (0, 0), (0x7FFFFFFF, 1), (1, 0xFFFFFFFF)):
        code, _ = rpc.call_words(probe, SUM_MAPPED, block.fd, nbytes, offset, capacity=1)
        assert code == 1000, (nbytes, offset)
    block.unmap()


def test_maps_have_the_codes_of_the_real_library(rpc, block):
    assert block.map() == 0x6B  # no session yet
    handle = rpc.opened("probe")
    assert block.map() == 0
    assert block.map() == 0x1A
    assert block.unmap() == 0
    assert block.unmap() == NO_SUCH_MAP
    assert block.map(domain=11) == 0x6B
    assert block.map(domain=99) == BAD_PARAMETER
    for flags in (1, 17, 2**32 - 1):
        assert block.map(flags) == BAD_PARAMETER
    for flags in (4, 15):
        assert block.map(flags) == 1  # the library passes them to the driver
    assert rpc.fastrpc_mmap(CDSP, block.fd, block.at, 4096, 4096, DELAYED) == BAD_PARAMETER
    assert rpc.fastrpc_mmap(CDSP, -1, block.at, 0, 4096, DELAYED) == BAD_PARAMETER
    assert rpc.fastrpc_mmap(CDSP, 999, block.at, 0, 4096, DELAYED) == 1
    assert rpc.fastrpc_mmap(CDSP, block.fd, block.at, 0, 0, DELAYED) == 1
    assert rpc.fastrpc_mmap(CDSP, block.fd, block.at, 0, 1 << 30, DELAYED) == 1
    rpc.close(handle)


def test_maps_end_with_the_session(rpc, block):
    handle = rpc.opened("probe")
    assert block.map() == 0
    rpc.close(handle)
    handle = rpc.opened("probe")

    assert rpc.call_words(handle, SUM_MAPPED, block.fd, 4, 0, capacity=1)[0] == 1000
    assert block.map() == 0
    rpc.close(handle)


def test_descriptors_of_many_threads_are_not_mixed_up(rpc, probe):
    """Each thread maps its own blocks, at the same time as the others."""
    wrong = []

    def work(number):
        block = Block(rpc, 4096)
        for _ in range(20):
            block.view[0], block.view[1] = 0, number  # the DSP inverts the first
            code = block.map()
            seen = rpc.call_words(probe, SUM_MAPPED, block.fd, 4096, 0, capacity=1)
            if (code, *seen, block.unmap()) != (0, 0, (number,), 0):
                wrong.append((number, code, seen))
        block.free()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_pd_can_map_no_more_than_its_space(rpc):
    rpc.control("space=256M")
    handle = rpc.opened("probe")
    blocks = [Block(rpc, 100 * MIB) for _ in range(3)]
    assert [block.map(DELAYED) for block in blocks] == [0, 0, 0]

    codes = [rpc.call_words(handle, KEEP, block.fd, 100 * MIB)[0] for block in blocks]
    assert codes == [0, 0, 1]
    rpc.call_words(handle, DROP_KEPT, 100 * MIB)  # unmapping frees address space
    assert rpc.call_words(handle, KEEP, blocks[2].fd, 100 * MIB)[0] == 0

    blocks[2].unmap()
    assert blocks[2].map(MAPPED) == 1  # the kernel's refusals have no other code
    rpc.call_words(handle, DROP_KEPT, 100 * MIB)
    for block in blocks:
        block.free()
    rpc.close(handle)


def test_memory_unmapped_under_a_skel_that_uses_it_ends_the_pd(rpc, probe, block):
    block.map()
    rpc.call_words(probe, KEEP, block.fd, 100_000)
    assert rpc.call_words(probe, TOUCH_KEPT, 0, 1, NEITHER, NEITHER, capacity=1)[0] == 0
    assert block.unmap() == 0

    assert rpc.call_words(probe, TOUCH_KEPT, 0, 1, NEITHER, NEITHER, capacity=1)[0] in PD_GONE


def test_memory_freed_while_it_is_mapped_is_complained_of_and_stays(rpc, probe):
    block = Block(rpc, 4096)
    block.map()
    rpc.call_words(probe, KEEP, block.fd, 4096)
    block.free()

    assert "call fastrpc_munmap first" in rpc.error()
    assert rpc.call_words(probe, TOUCH_KEPT, 0, 1, NEITHER, NEITHER, capacity=1)[0] == 0


def test_arguments_give_way_when_there_is_no_room(rpc):
    """Blocks that calls passed remain mapped for the next call, unless memory is needed."""
    rpc.control("space=3500M")
    handle = rpc.opened("probe")
    for _ in range(5):
        block = Block(rpc, 900 * MIB)
        block.view[0] = 3
        assert rpc.call(handle, INVERT, (block.at, 4), 4)[1][0] == 252
        other = Block(rpc, 900 * MIB)
        assert rpc.call(handle, INVERT, (other.at, 4), 4)[1][0] == 255
        block.free()
        assert rpc.call(handle, INVERT, (other.at, 4), 4)[0] == 0
        other.free()
    rpc.close(handle)


# --- caches ---------------------------------------------------------------------------------------


@pytest.fixture
def shadowed(rpc, block):
    """Return bytes mapped by a skel, on a machine where missing cache maintenance is visible."""
    rpc.control("shadow=1")
    handle = rpc.opened("probe")
    block.map()
    rpc.call_words(handle, KEEP, block.fd, 100_000)

    def touch(offset, value, before, after):
        code, (seen,) = rpc.call_words(handle, TOUCH_KEPT, offset, value, before, after, capacity=1)
        assert code == 0
        return seen

    yield block, touch
    rpc.close(handle)


def test_without_an_invalidate_the_dsp_sees_what_was_there_before(shadowed):
    block, touch = shadowed
    block.view[500] = 7

    assert touch(500, 0, NEITHER, NEITHER) == 0
    block.view[1000] = 8
    assert touch(1000, 0, INVALIDATE, NEITHER) == 8


def test_without_a_flush_the_host_sees_nothing(shadowed):
    block, touch = shadowed

    touch(500, 7, NEITHER, NEITHER)
    assert block.view[500] == 0
    touch(500, 8, NEITHER, FLUSH)
    assert block.view[500] == 8


def test_a_flush_writes_only_what_the_dsp_changed(shadowed):
    """A clean line is not written back, so the host's data in it remain."""
    block, touch = shadowed
    touch(0, 1, NEITHER, FLUSH)
    block.view[200] = 9

    touch(265, 5, NEITHER, NEITHER)  # another cache line than that of byte 200
    touch(200, 0, NEITHER, NEITHER)  # this line is clean: the skel writes the 0 that it sees
    touch(201, 0, NEITHER, FLUSH)
    assert block.view[200] == 9
    assert block.view[265] == 0


def test_arguments_need_no_maintenance(rpc, shadowed):
    block, _ = shadowed
    handle = rpc.opened("probe")
    block.view[2000:2002] = b"ab"

    code, _ = rpc.call(handle, INVERT, (block.at + 2000, 2), (block.at + 3000, 2))

    assert code == 0
    assert bytes(block.view[3000:3002]) == bytes([255 - 97, 255 - 98])
    rpc.close(handle)


# --- VTCM -----------------------------------------------------------------------------------------


def test_vtcm_is_granted_up_to_its_size(rpc):
    rpc.control("vtcm=1M")
    handle = rpc.opened("probe")

    code, seen = rpc.call_words(handle, USE_VTCM, MIB // 2, 0, 0, capacity=5)
    assert (code, seen) == (0, (MIB, MIB, MIB // 2, MIB // 2, 0xA5A5A5A5))
    code, seen = rpc.call_words(handle, USE_VTCM, 8 * MIB, MIB // 4, 0, capacity=5)
    assert (code, seen[2]) == (0, MIB)
    assert rpc.call_words(handle, USE_VTCM, 8 * MIB, 2 * MIB, 0, capacity=5)[0] == 1001
    rpc.close(handle)


def test_a_machine_without_vtcm_grants_none(rpc):
    rpc.control("vtcm=0")
    handle = rpc.opened("probe")
    assert rpc.call_words(handle, USE_VTCM, 4096, 0, 0, capacity=5)[0] == 1001
    rpc.close(handle)


def test_vtcm_that_was_given_back_may_not_be_touched(rpc, probe):
    assert rpc.call_words(probe, USE_VTCM, 65536, 0, 1, capacity=5)[0] in PD_GONE


# --- stack and heap -------------------------------------------------------------------------------


def test_the_stack_is_as_large_as_asked_for(rpc):
    """The default is 16 KiB; a call that needs more ends the PD."""
    handle = rpc.opened("probe")
    assert rpc.call_words(handle, STACK, 8)[0] == 0
    assert rpc.call_words(handle, STACK, 16)[0] in PD_GONE
    rpc.close(handle)

    parameters = (c.c_int * 3)(CDSP, -1, 256 << 10)
    assert rpc.remote_session_control(1, parameters, 12) == 0
    handle = rpc.opened("probe")
    assert rpc.call_words(handle, STACK, 200)[0] == 0
    rpc.close(handle)
    parameters[2] = 16 << 10
    rpc.remote_session_control(1, parameters, 12)


@pytest.mark.parametrize("nbytes", [1, 100, 5000, 40_000, 3 * MIB])
def test_the_heap_gives_memory_that_is_not_zero(rpc, probe, nbytes):
    code, (first,) = rpc.call_words(probe, HEAP, nbytes, 0, capacity=1)

    assert code == 0
    assert first == (0xA5 if nbytes < 30_000 else 0)  # the kernel allocates large blocks


def test_memory_freed_twice_ends_the_pd(rpc, probe):
    assert rpc.call_words(probe, HEAP, 100, 1, capacity=1)[0] in PD_GONE
    assert "freed twice" in rpc.error()
    assert rpc.call_words(probe, STATUS, 0)[0] == 0x27
