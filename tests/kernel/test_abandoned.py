"""Test clients that close their file, or end, while their jobs run.

Each test has a separate kernel: Linux 7.2 and 7.3 free the memory of the file when it is closed,
and use it again when its last job ends (rocket_gem_bo_free).  If the memory has another owner by
then, the kernel may crash.
"""

import signal
import subprocess
import sys
import time

import pytest

from tests.sim_rknpu import protocol
from tests.sim_rknpu.bench import Bench, exact, operands
from tests.sim_rknpu.client import Rocket
from tests.sim_rknpu.lists import Task

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("cores")]

LARGE = Task(128, 1024, 512)  # a job that takes a millisecond in the model


def check_the_next_client(system):
    time.sleep(protocol.DRIVER_FREES_S)
    with Rocket(system=system) as driver:
        bench = Bench(driver, LARGE, *operands(LARGE))
        assert (bench.run() == exact(LARGE, *operands(LARGE))).all()
        time.sleep(protocol.DRIVER_FREES_S)


CLIENT = """
import sys
from tests.kernel.test_abandoned import LARGE
from tests.sim_rknpu import client
from tests.sim_rknpu.bench import Bench, operands

driver = client.Rocket(system=client.kernel())
bench = Bench(driver, LARGE, *operands(LARGE))
print("at work", flush=True)
while True:
    bench.start()
    if sys.argv[1] == "in step":
        bench.c.prep(10)
"""


@pytest.mark.parametrize("how", ["in step", "ahead"])
def test_a_client_that_is_killed_leaves_the_npu_to_the_others(system, how):
    with subprocess.Popen([sys.executable, "-c", CLIENT, how], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    check_the_next_client(system)


def test_a_file_may_be_closed_while_its_jobs_run(system):
    driver = Rocket(system=system)
    bench = Bench(driver, LARGE, *operands(LARGE))
    for _ in range(8):
        bench.start()
    driver.close()
    check_the_next_client(system)
