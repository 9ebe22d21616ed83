"""Test cache maintenance and invalid pointers."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from tests.sim_rknpu import client, lists
from tests.sim_rknpu.bench import SENTINEL, Bench, exact, operands
from tests.sim_rknpu.client import CREATE_BO, MEM_CREATE, SUBMIT_ROCKET, Rknpu, Rocket
from tests.sim_rknpu.lists import Task

TASK = Task(4, 64, 64)
NOWHERE = (0, 8, 0x7FFF_FFFF_F000, 0xFFFF_FFFF_FFFF_FFFF, 0x8000_0000_0000_0000)


@pytest.fixture
def incoherent():
    client.configure("coherent=0")


@pytest.fixture
def bench(incoherent, driver):
    return Bench(driver, TASK, *operands(TASK))


def test_a_program_that_does_all_maintenance_is_right(bench):
    bench.fill()

    np.testing.assert_array_equal(bench.run(), exact(TASK, *operands(TASK)))


@pytest.mark.parametrize("missed", ["a", "b"])
def test_what_the_cpu_wrote_and_did_not_hand_over_is_not_seen(bench, missed):
    getattr(bench, missed).bytes[:] = 0

    np.testing.assert_array_equal(bench.run(), exact(TASK, *operands(TASK)))

    getattr(bench, missed).fini()
    assert not bench.run().any()


def start_and_wait(bench):
    """Run a list without synchronising its output; on rocket, wait for another output."""
    other = bench.driver.create(64)
    bench.start(other)
    other.prep()


def test_what_the_npu_wrote_is_seen_after_maintenance_alone(bench):
    bench.fill()

    start_and_wait(bench)

    assert bench.untouched()
    bench.c.prep()
    np.testing.assert_array_equal(bench.output(), exact(TASK, *operands(TASK)))


def test_uncached_buffers_of_the_vendor_need_none(incoherent):
    with Rknpu() as driver:
        bench = Bench(driver, TASK, *operands(TASK))
        bench.c = driver.create(len(bench.c.bytes), client.LISTS)
        bench.put(lists.encode(replace(bench.task, c=bench.c.iova)))

        np.testing.assert_array_equal(bench.run(), exact(TASK, *operands(TASK)))


def test_maintenance_of_a_range_reaches_that_range_alone(incoherent):
    def sync(direction, offset, size):
        args = struct.pack("<IIQQQ", direction, 0, bench.c.obj, offset, size)
        driver.ioctl(client.MEM_SYNC, args)

    with Rknpu() as driver:
        bench = Bench(driver, TASK, *operands(TASK))
        bench.fill()
        start_and_wait(bench)
        sync(2, 256, 512)
        for offset, size in ((1 << 40, 64), (0, 1 << 40), (1023, 1 << 63)):
            sync(1, offset, size)  # outside the buffer: no effect

    touched = (bench.c.bytes.reshape(4, 256) != SENTINEL).any(axis=1)
    assert touched.tolist() == [False, True, True, False]


# --- pointers --------------------------------------------------------------------------------


@pytest.mark.parametrize("pointer", NOWHERE, ids=hex)
def test_a_pointer_to_nowhere_is_an_error(driver, pointer):
    ffi = driver.ffi
    request = CREATE_BO if isinstance(driver, Rocket) else MEM_CREATE
    for number in (request, client.VERSION, client.GEM_CLOSE):
        at = ffi.cast("void *", pointer)

        assert driver.lib.ioctl(driver.fd, number, at) == -1
        assert ffi.errno == 14  # EFAULT


def test_a_pointer_inside_a_struct_to_nowhere_is_an_error(driver):
    for pointer in NOWHERE[1:]:
        with pytest.raises(OSError, match="EFAULT"):
            driver.ioctl(client.VERSION, struct.pack("<iiii6Q", 0, 0, 0, 0, 9, pointer, 0, 0, 0, 0))
    driver.ioctl(client.VERSION, bytes(64))  # a size of 0: nothing is written


def test_arrays_of_a_job_that_are_nowhere_leave_it_undone():
    with Rocket() as driver:
        bench = Bench(driver, TASK, *operands(TASK))
        bench.fill()
        for place in range(3):
            for pointer in NOWHERE:
                arrays = [0, 0, 0]
                arrays[place] = pointer
                job = driver.ffi.new("char[]", struct.pack("<QQQ4I", *arrays, 1, 8, 1, 1))
                at = int(driver.ffi.cast("uint64_t", job))
                driver.ioctl(SUBMIT_ROCKET, struct.pack("<QIIQ", at, 1, 40, 0))
        bench.c.prep()
        assert bench.untouched()
