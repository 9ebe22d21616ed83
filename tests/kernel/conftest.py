"""What the tests inside the kernel share: the process that stands for the NPU, its clients."""

import os
import subprocess
from contextlib import contextmanager

import pytest

from tests.sim_rknpu import client


@contextmanager
def started(settings=""):
    """Run the program behind /dev/npuhw with *settings* of the simulator."""
    npu = os.environ["NPURT_KERNEL_NPU"]
    env = {"NPURT_SIM_RKNPU": f"log=0 {settings}"}
    with subprocess.Popen([npu], env=env, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def hardware():
    """Return a context manager in which the cores are there, with settings."""
    return started


@pytest.fixture
def cores():
    """The three cores, without a fault."""
    with started():
        yield


@pytest.fixture
def system():
    """The kernel, for clients without npurt's code."""
    return client.kernel()


@pytest.fixture
def log():
    """Return a function that gives what the kernel logged since the test began."""
    with open("/dev/kmsg") as kmsg:
        os.set_blocking(kmsg.fileno(), False)
        os.lseek(kmsg.fileno(), 0, os.SEEK_END)

        def lines():
            found = []
            while True:
                try:
                    found.append(os.read(kmsg.fileno(), 8192).decode())
                except BlockingIOError:
                    return "".join(found)

        yield lines
