"""Test the thread of each rocket core: it starts on request, has a name, and ends on time."""

import contextlib
import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from npurt.errors import DeviceLost, SettingError
from npurt.rknpu.driver.detect import open_driver
from npurt.rknpu.driver.native.run import CoreQueue, NativeRun, ThreadPool
from npurt.rknpu.driver.system import LinuxKernel
from npurt.rknpu.isa.layout import Layout
from tests.limits import HANG_SECONDS
from tests.rknpu.conftest import STRICT
from tests.rknpu.products import Prepared
from tests.rknpu.test_driver import INT8, RIGHT, A, B


@pytest.fixture
def faults(simulator):
    """Return a function that arms a fault; remove the fault after the test."""
    simulator.set(f"reload=1 {STRICT}")
    yield simulator.set
    simulator.set(f"reload=1 {STRICT}")


def threads():
    """Return the names of this process's core threads."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread ended in the meantime
            names.append(path.read_text().strip())
    return sorted(name for name in names if name.startswith("npurt-core"))


def left(count):
    """Wait for *count* threads, because /proc lists joined ones for a moment; return the names."""
    end = time.monotonic() + 10
    while len(threads()) != count and time.monotonic() < end:
        time.sleep(0.001)
    return threads()


@pytest.fixture
def threaded(simulator, monkeypatch, faults):
    monkeypatch.setenv("NPURT_ROCKET_THREADS", "1")
    opened = open_driver(simulator, ("rocket",))
    yield opened
    opened.close()


def test_threads_have_names_and_are_gone_after_close(simulator, threaded):
    before = threads()
    another = open_driver(simulator, ("rocket",))
    assert before == ["npurt-core-1", "npurt-core-2"]
    assert threads() == sorted(before * 2)
    assert "a thread for each" in another.detail

    another.close()
    another.close()
    assert left(2) == before


def test_the_caller_is_the_thread_of_the_first_core_and_the_only_one_unless_asked(
    simulator, monkeypatch
):
    for setting, cores in (("0", 3), ("1", 1)):
        monkeypatch.setenv("NPURT_ROCKET_THREADS", setting)
        simulator.set(f"cores={cores}")
        opened = open_driver(simulator, ("rocket",))
        product = Prepared(opened, A, B, INT8, Layout.ROW, cores=cores)
        np.testing.assert_array_equal(product.run(), RIGHT)
        assert left(0) == []
        assert "thread" not in opened.detail
        opened.close()
    simulator.set(STRICT)


def test_a_setting_that_is_no_number_opens_nothing(simulator, monkeypatch):
    monkeypatch.setenv("NPURT_ROCKET_THREADS", "many")
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(SettingError, match="NPURT_ROCKET_THREADS='many'"):
        open_driver(simulator, ("rocket",))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_driver_that_is_forgotten_takes_its_threads_along(simulator, monkeypatch):
    monkeypatch.setenv("NPURT_ROCKET_THREADS", "1")
    opened = open_driver(simulator, ("rocket",))
    spaces = opened.spaces
    del opened
    gc.collect()

    assert left(0) == []
    for space in spaces:
        space.close()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_whichever_core_fails_is_named_and_the_others_are_waited_for(
    threaded, faults, simulator, nth
):
    product = Prepared(threaded, A, B, INT8, Layout.ROW)
    faults(f"counters=0 fault=eio@submit:{nth}")

    with pytest.raises(DeviceLost, match="SUBMIT failed"):
        product.run()
    assert simulator.report()["jobs"]["rocket"] == 2
    np.testing.assert_array_equal(product.run(), RIGHT)


def test_cores_run_side_by_side_again_and_again(threaded):
    rng = np.random.default_rng(0)
    products = [Prepared(threaded, A, B, INT8, Layout.ROW, cores=cores) for cores in (3, 2, 1)]
    for _ in range(200):
        a = rng.integers(-128, 128, A.shape, np.int8)
        for each in products:
            each.set(a)
            np.testing.assert_array_equal(each.run(), a.astype(np.int32) @ B.T)


def test_a_job_for_fewer_cores_leaves_the_other_threads_without_work():
    pool = ThreadPool(2)
    copies = [np.zeros(64, np.uint8) for _ in range(3)]
    run = NativeRun(
        [CoreQueue([], [], copy) for copy in copies], a=np.ones(64, np.uint8), pool=pool
    )
    run.table.queue_count = 2

    assert LinuxKernel().make(run) is None
    assert [copy.all() for copy in copies] == [True, True, False]
    pool.close()


SHORT_OF_MEMORY = """
import resource
from npurt.errors import NpurtError
from npurt.rknpu.driver.native.run import ThreadPool
from tests.rknpu.test_threads import left
one = ThreadPool(1)
one.close()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20), resource.RLIM_INFINITY))
try:
    ThreadPool(8)
except NpurtError as error:
    print(error)
print(*left(0), "are left")
"""


def test_threads_that_cannot_be_started_end_in_a_clear_error_and_leave_none():
    """A stack has 8 MiB, so only a few of the eight threads start."""
    project = Path(__file__).resolve().parents[2]
    told = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY],
        env=os.environ | {"PYTHONPATH": str(project)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    ).stdout

    assert "cannot start 8 threads: Resource temporarily unavailable" in told
    assert "unset NPURT_ROCKET_THREADS" in told
    assert told.splitlines()[-1] == "are left"
