"""Fixtures for the simulated NPU under both drivers, at its strictest settings."""

import pytest

from npurt.rknpu.driver.detect import open_driver
from npurt.rknpu.driver.system import SimulatedKernel

STRICT = "coherent=0 guard=1 strict=1 log=0 cores=3 hang_ms=20 version=908"


@pytest.fixture(scope="session")
def simulator():
    """Return the simulator's library; a test that changes its settings restores `STRICT`."""
    return SimulatedKernel()


@pytest.fixture(scope="module", params=["rocket", "rocket with threads", "rknpu"])
def driver(request, simulator):
    """Return each driver in turn, opened once per module."""
    simulator.set(f"reload=1 {STRICT}")
    name, _, threads = request.param.partition(" ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPURT_ROCKET_THREADS", "1" if threads else "0")
        opened = open_driver(simulator, (name,))
    yield opened
    opened.close()
    simulator.set(f"reload=1 {STRICT} coherent=1 hang_ms=0")
