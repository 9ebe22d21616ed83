"""Fixtures of the tests inside the kernel: the process that simulates the NPU, and its clients."""

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
    """Return a context manager that runs the cores with settings of the simulator."""
    return started


@pytest.fixture
def cores():
    """Run the three cores, without a fault."""
    with started():
        yield


@pytest.fixture
def system():
    """Return the kernel, for clients without npurt's code."""
    return client.kernel()


@pytest.fixture
def log():
    """Return a function that returns the kernel's log since the beginning of the test."""
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
