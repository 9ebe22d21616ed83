"""Test a driver's reaction to faults: it recovers or reports them clearly, and loses nothing."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from npurt.errors import DeviceFull, DeviceLost, DriverError, LayoutError
from npurt.rknpu.driver.base import SENTINEL, CoreTasks
from npurt.rknpu.driver.detect import open_driver
from npurt.rknpu.driver.memory import Created, Space
from npurt.rknpu.driver.system import LinuxKernel
from npurt.rknpu.driver.vendor import sync_of
from npurt.rknpu.isa.formats import FORMATS
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.plan import cost
from npurt.rknpu.plan.proof import Role
from tests.limits import HANG_SECONDS
from tests.rknpu.conftest import STRICT
from tests.rknpu.products import Prepared, core_tasks, elements

INT8 = FORMATS["int8"]
A = elements(INT8, (3, 96), 0)
B = elements(INT8, (200, 96), 1)
RIGHT = A.astype(np.int32) @ B.T


@pytest.fixture
def faults(simulator):
    """Return a function that arms a fault; remove the fault after the test."""
    yield simulator.set
    simulator.set(f"reload=1 {STRICT}")


@pytest.fixture
def product(driver):
    prepared = Prepared(driver, A, B, INT8, Layout.ROW)
    yield prepared
    prepared.free()


@pytest.mark.parametrize("fault", ["timeout", "stale", "einval", "enomem"])
def test_a_job_that_fails_once_is_run_again(driver, product, faults, fault):
    faults(f"fault={fault}@submit")

    np.testing.assert_array_equal(product.run(), RIGHT)


@pytest.mark.parametrize("fault", ["timeout", "stale", "einval", "wedge"])
def test_a_job_that_fails_again_says_so_and_the_device_can_be_opened_anew(
    simulator, faults, fault, request
):
    for name in ("rocket", "rknpu"):
        opened = open_driver(simulator, (name,))
        product = Prepared(opened, A, B, INT8, Layout.ROW)
        faults(f"fault={fault}@submit:1+")
        with pytest.raises(DeviceLost, match="a job failed 2 times") as error:
            product.run()
        assert error.value.remedy
        assert error.value.call == "SUBMIT"
        opened.close()

        faults("reload=1")
        opened = open_driver(simulator, (name,))
        product = Prepared(opened, A, B, INT8, Layout.ROW)
        np.testing.assert_array_equal(product.run(), RIGHT)
        opened.close()


def test_a_reset_brings_a_wedged_core_back_where_the_driver_has_one(driver, product, faults):
    faults("fault=wedge@submit")

    if driver.name == "rknpu":
        np.testing.assert_array_equal(product.run(), RIGHT)
    else:
        with pytest.raises(DeviceLost, match="without writing its result"):
            product.run()


@pytest.mark.parametrize(("fault", "name"), [("dead", "ENODEV"), ("eio", "EIO")])
def test_a_dead_node_is_not_tried_again(driver, product, faults, simulator, fault, name):
    faults(f"counters=0 fault={fault}@submit")

    with pytest.raises(DeviceLost, match=name):
        product.run()
    others = 2 if "thread" in driver.detail and fault == "eio" else 0  # jobs of other threads
    assert simulator.report()["jobs"] == {"rocket": others, "rknpu": 0}


def test_an_interrupted_call_is_made_again(driver, product, faults):
    for call in ("submit", "sync", "prep", "fini"):
        faults(f"fault=eintr@{call}:1")
    np.testing.assert_array_equal(product.run(), RIGHT)


def test_a_call_that_is_always_interrupted_is_given_up(driver, product, faults):
    faults("fault=eintr@submit:1+")

    with pytest.raises(DeviceLost, match=r"SUBMIT failed: .*EINTR"):
        product.run()


def test_a_wait_has_an_end(driver, product, faults):
    """The driver abandons a job that hangs longer than the caller's timeout."""
    faults("hang_ms=200 fault=timeout@submit:1+")

    with pytest.raises(DeviceLost) as error:
        driver.run(product.job, timeout_s=0.02)
    assert error.value.code == errno.ETIMEDOUT
    assert isinstance(error.value.__cause__, DriverError)


def wait(driver, product, monkeypatch, *, seconds=None):
    """Return the timeout passed to the kernel; *seconds* replaces the job's expected time."""
    cores = [core_tasks(product.plan, core, *product.buffers[core]) for core in product.cores]
    with monkeypatch.context() as patch:
        if seconds is not None:
            patch.setattr(driver, "_expected", lambda tasks: seconds)
        job = driver.prepare(cores)
        patch.setattr(driver, "_try", lambda _, told: waits.append(told))
        waits = []
        driver.run(job)
    job.free()
    return waits[0]


def test_a_job_may_take_many_times_what_the_model_gives_it_and_little_more(
    driver, product, monkeypatch
):
    """On mainline, the wait is fixed, because the kernel ends a job that hangs before that."""
    npu = cost.npu_seconds([product.plan], driver.name).expected
    model = npu - cost.SPEEDS[driver.name].expected.submit_s

    small = wait(driver, product, monkeypatch)
    large = wait(driver, product, monkeypatch, seconds=0.3)

    assert small == pytest.approx(wait(driver, product, monkeypatch, seconds=model), abs=1e-9)
    if driver.name == "rocket":
        assert small == large > 0.5
    else:
        assert 0.5 <= small < 0.6
        assert 10 * 0.3 < large < 10


def test_no_job_may_take_longer_than_the_deadline(simulator, monkeypatch):
    monkeypatch.setenv("NPURT_DEADLINE", "3")
    for name in ("rocket", "rknpu"):
        opened = open_driver(simulator, (name,))
        product = Prepared(opened, A, B, INT8, Layout.ROW)

        assert wait(opened, product, monkeypatch, seconds=100.0) == 3
        opened.close()


def test_the_kernel_is_told_how_long_to_wait_whenever_that_changes(driver, product, faults):
    """The timeout of a failed short wait is not used for the next run."""
    faults("hang_ms=200 fault=timeout@submit:1+")
    with pytest.raises(DeviceLost):
        driver.run(product.job, timeout_s=0.02)
    faults(f"reload=1 {STRICT} hang_ms=60 fault=timeout@submit")

    np.testing.assert_array_equal(product.run(), RIGHT)


def test_the_vendors_driver_is_told_to_reset_between_two_attempts(simulator, faults):
    opened = open_driver(simulator, ("rknpu",))
    product = Prepared(opened, A, B, INT8, Layout.ROW)
    faults("fault=timeout@submit fault=eio@action")

    with pytest.raises(DeviceLost, match="ACTION failed"):
        product.run()
    opened.close()


def test_a_flipped_bit_is_for_the_verification_above_to_find(driver, product, faults):
    faults("fault=flip@submit")

    # The fault changes a value of one core, or of all three if they are in one job.
    assert (product.run() != RIGHT).sum() in (1, 3)
    np.testing.assert_array_equal(product.run(), RIGHT)


def test_no_sum_of_int8_products_and_no_finite_float_is_the_sentinel():
    as_int = int(np.frombuffer(SENTINEL, "<i4")[0])

    assert abs(as_int) > 128 * 128 * 16384
    assert np.isnan(np.frombuffer(SENTINEL, "<f4")).all()


@pytest.mark.parametrize("fault", ["enomem@create:2", "enospc@create:2", "efault@create:2"])
def test_memory_that_is_not_there_is_told_with_what_is_used(driver, faults, fault):
    space = driver.spaces[0]
    first = space.alloc(4096, Role.INPUT, "A")
    faults(f"fault={fault}")
    second = space.alloc(4096, Role.INPUT, "B")

    with pytest.raises(DeviceFull, match=r"no space for 8192 bytes of C; .* have \d+ bytes"):
        space.alloc(8192, Role.OUTPUT, "C")
    first.free()
    second.free()


@pytest.mark.parametrize("call", ["create", "map"])
def test_a_job_that_cannot_be_loaded_leaves_nothing_behind(driver, faults, call):
    product = Prepared(driver, A, B, INT8, Layout.ROW)
    cores = [core_tasks(product.plan, core, *product.buffers[core]) for core in product.cores]
    product.job.free()  # so that memory for commands is allocated again
    before = spans(driver)
    if call == "map" and driver.name == "rocket":
        call = "create"  # rocket has no map ioctl
    # rocket needs a buffer for each of three cores; rknpu needs one of programs and one of tasks.
    for n in range(1, 4 if driver.name == "rocket" else 3):
        faults(f"fault=eio@{call}:{n}")
        with pytest.raises(DriverError):
            driver.prepare(cores)
        assert spans(driver) == before
        faults("reload=1")
    product.job = driver.prepare(cores)
    np.testing.assert_array_equal(product.run(), RIGHT)
    product.free()


def spans(driver):
    """Return the allocations in each space, after unused command buffers are freed."""
    for space in driver.spaces:
        space.trim()
    return [list(space.spans) for space in driver.spaces]


def test_commands_of_many_jobs_share_buffers_and_make_room_for_each_other(driver, simulator):
    """Buffers of 64 and 128 KB hold two and five pieces of 24 KB; a further piece replaces one."""
    before = spans(driver)
    space = driver.spaces[0]
    held = []

    def take(make_space=lambda: False):
        held.append(space.suballocate(24 << 10, Role.PROGRAM, "programs", 64, make_space))

    def make_space():
        held.pop(3).free()
        return True

    for _ in range(7):
        take()
    simulator.set("fault=enomem@create:1+")
    with pytest.raises(DeviceFull):
        take()
    take(make_space)
    simulator.set("reload=1")

    assert len(held) == 7
    assert len({each.address for each in held}) == 7
    assert len({each.buffer.address for each in held}) == 2
    for each in held:
        each.free()
    assert spans(driver) == before


def test_a_program_that_leaves_its_buffers_is_refused_before_any_submit(driver, product, simulator):
    simulator.set("counters=0")
    cores = [core_tasks(product.plan, core, *product.buffers[core]) for core in product.cores]
    spoilt = [list(places) for places in cores[0].addresses]
    spoilt[-1][2] += 4096
    before = [list(space.spans) for space in driver.spaces]

    with pytest.raises(LayoutError, match="DPU_DST_BASE_ADDR"):
        driver.prepare([CoreTasks(cores[0].tasks, spoilt), *cores[1:]])
    assert [space.spans for space in driver.spaces] == before
    assert sum(simulator.report()["submits"].values()) == 0


def test_a_job_whose_buffer_was_freed_is_refused(driver):
    product = Prepared(driver, A, B, INT8, Layout.ROW)
    other = driver.spaces[0].alloc(64, Role.INPUT, "another")
    other.free()
    np.testing.assert_array_equal(product.run(), RIGHT)

    product.buffers[0][1].free()
    with pytest.raises(LayoutError, match="buffer B, which was freed"):
        product.run()
    product.free()


def test_a_freed_buffer_cannot_be_touched_and_views_of_it_stay_mapped(driver):
    buffer = driver.spaces[0].alloc(4096, Role.INPUT, "A")
    with buffer.cpu_access(write=True) as memory:
        memory[:] = 7
        view = np.from_dlpack(memory)
        assert np.shares_memory(view, memory)
    buffer.free()
    buffer.free()

    assert memory.sum() == 7 * 4096
    with pytest.raises(LayoutError, match="buffer A was freed"), buffer.cpu_access(write=False):
        pass


@pytest.mark.parametrize(
    ("start", "end", "offset", "size"),
    [(0, 1, 0, 64), (100, 164, 64, 128), (8128, 8200, 8128, 72), (0, 8200, 0, 8200)],
)
def test_the_vendors_driver_cleans_whole_lines_of_a_part(simulator, start, end, offset, size):
    opened = open_driver(simulator, ("rknpu",))
    buffer = opened.spaces[0].alloc(8200, Role.INPUT, "A")

    request = sync_of(buffer, start, end, 1).argument

    assert (request.offset, request.size, request.obj_addr) == (offset, size, buffer.cookie)
    opened.close()


@pytest.mark.parametrize("count", [0, 4])
def test_work_for_no_core_or_too_many_is_refused(driver, count):
    with pytest.raises(LayoutError, match=f"asked for {count} cores"):
        driver.prepare([CoreTasks([], [])] * count)
    with pytest.raises(LayoutError, match=r"with \[0\] tasks"):
        driver.prepare([CoreTasks([], [])])


def test_cores_may_have_different_numbers_of_tasks(driver):
    """17 groups of columns are cut into tiles of 2, for three cores, two, and one."""
    b = elements(INT8, (17 * 32, 64), 2)
    a = elements(INT8, (5, 64), 3)
    for cores in (3, 2, 1):
        product = Prepared(driver, a, b, INT8, Layout.ROW, tile={"max_n": 64}, cores=cores)
        counts = [part.count for part in product.job.parts]
        assert len(counts) == cores
        np.testing.assert_array_equal(product.run(), a.astype(np.int32) @ b.T)
        product.free()


def test_a_chain_that_the_hardware_cannot_count_is_refused(driver):
    if driver.name == "rocket":
        return  # rocket starts each task separately
    product = Prepared(driver, A[:1], B[:32], INT8, Layout.ROW)
    tasks, places = core_tasks(product.plan, 0, *product.buffers[0])

    with pytest.raises(LayoutError, match="cannot run 4096 tasks"):
        driver.prepare([CoreTasks(tasks * 4096, places * 4096)])
    driver.prepare([CoreTasks(tasks * 4095, places * 4095)]).free()
    product.free()


def test_memory_above_4_gib_is_given_back():
    class High(Space):
        destroyed = 0

        def _create(self, nbytes, role):
            return Created(1, (1 << 32) - 4096, np.zeros(nbytes, np.uint8))

        def _destroy(self, buffer):
            self.destroyed += 1

        def clean_calls(self, buffer, start, end):
            raise AssertionError

    space = High(LinuxKernel(), -1)
    with pytest.raises(DeviceFull, match="below 4 GiB"):
        space.alloc(4097, Role.INPUT, "A")
    assert space.destroyed == 1
    assert space.spans == []
    space.alloc(4096, Role.INPUT, "A")
    assert space.spans[0].end == 1 << 32


FORKED = """
import os, sys
from npurt.errors import DeviceLost
from npurt.rknpu.driver.detect import open_driver
from npurt.rknpu.driver.system import SimulatedKernel
from tests.rknpu.test_driver import A, B, INT8, RIGHT, Layout, Prepared
product = Prepared(open_driver(SimulatedKernel(), (sys.argv[1],)), A, B, INT8, Layout.ROW)
child = os.fork()
if not child:
    try:
        product.run()
    except DeviceLost as error:
        product.free()
        product.driver.close()
        os._exit(7 if "forked" in error.what else 1)
    os._exit(2)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(status if (product.run() == RIGHT).all() else 3)
"""


@pytest.mark.parametrize(("name", "threads"), [("rocket", "0"), ("rocket", "1"), ("rknpu", "0")])
def test_a_forked_process_is_told_to_open_its_own(name, threads):
    project = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(project), "NPURT_ROCKET_THREADS": threads}

    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, name], env=environment, timeout=HANG_SECONDS
    )

    assert result.returncode == 7


def test_closing_twice_is_closing_once(simulator):
    for name in ("rocket", "rknpu"):
        before = len(os.listdir("/proc/self/fd"))
        opened = open_driver(simulator, (name,))
        product = Prepared(opened, A, B, INT8, Layout.ROW)
        opened.close()
        opened.close()
        with pytest.raises(DeviceLost, match="was closed"):
            product.run()
        product.free()
        assert len(os.listdir("/proc/self/fd")) == before
