"""Test Linux's rocket driver on the simulator's cores, with clients that wait for their jobs.

These tests run inside the kernel: `make kernel`.
"""

import os
import time

import numpy as np
import pytest

from tests.sim_rknpu import protocol, questions
from tests.sim_rknpu.bench import Bench, exact, operands
from tests.sim_rknpu.client import Rocket
from tests.sim_rknpu.lists import Task

pytestmark = pytest.mark.kernel

VERSION = os.environ.get("NPURT_KERNEL_VERSION", "").partition("-")[0]
TASK = Task(4, 64, 64)
LARGE = Task(128, 1024, 512)  # a job that takes a millisecond in the model


def settle():
    """Wait until the driver has released the last job's buffers: see protocol.DRIVER_FREES_S."""
    time.sleep(protocol.DRIVER_FREES_S)


def right(bench, task=TASK):
    return (bench.run() == exact(task, *operands(task))).all()


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("name", protocol.CASES)
def test_the_driver_answers_as_recorded(system, name):
    """A difference is a change of the driver: examine it, and record the answers again."""
    recorded = protocol.recorded()
    assert f"linux-{VERSION}" in recorded, "record it: tests/data/rocket"

    assert protocol.ask(name, system) == recorded[f"linux-{VERSION}"][name]


def test_a_core_that_is_silent_is_reset_and_runs_again(hardware, system, log):
    with Rocket(system=system) as driver:
        bench = Bench(driver, TASK, *operands(TASK))
        with hardware("fault=timeout@submit:2"):
            assert right(bench)
            bench.fill()
            start = time.monotonic()
            bench.start()
            bench.c.prep(10)
            assert bench.untouched()
            assert (
                0.5 <= time.monotonic() - start < 1
            )  # seconds of the kernel's clock, which is simulated
            assert right(bench)
        settle()

    assert log().count("NPU job timed out") == 1


def test_without_any_core_every_job_ends_after_half_a_second(system, log):
    with Rocket(system=system) as driver:
        bench = Bench(driver, TASK, *operands(TASK))
        bench.fill()
        for _ in range(3):
            bench.start()
        bench.c.prep(10)
        assert bench.untouched()
        settle()

    assert log().count("NPU job timed out") == 3


@pytest.mark.usefixtures("cores")
def test_clients_side_by_side_have_memory_of_their_own(system):
    with Rocket(system=system) as one, Rocket(system=system) as two, Rocket(system=system) as three:
        benches = [
            Bench(driver, LARGE, *operands(LARGE, seed))
            for seed, driver in enumerate((one, two, three))
        ]
        assert len({bench.c.iova for bench in benches}) == 1
        for _ in range(3):
            for bench in benches:
                bench.fill()
                bench.start()
            for seed, bench in enumerate(benches):
                bench.c.prep(10)
                np.testing.assert_array_equal(bench.output(), exact(LARGE, *operands(LARGE, seed)))
        settle()


@pytest.mark.usefixtures("cores")
def test_memory_that_is_used_up_is_there_again_when_it_is_closed(system):
    def fill(driver, size):
        held = []
        try:
            while True:
                held.append(questions.new(driver, size)[0])
        except OSError as error:
            return len(held), error.strerror

    with Rocket(system=system) as driver:
        first = fill(driver, 64 << 20)
    with Rocket(system=system) as driver:
        again = fill(driver, 64 << 20)
    with Rocket(system=system) as driver:
        assert right(Bench(driver, TASK, *operands(TASK)))
        settle()

    assert 4 < first[0] < 16  # of 1 GiB
    assert first == again
    assert "ENOMEM" in first[1]
