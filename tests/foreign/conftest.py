"""What is built and fetched for the programs of others, by one process at a time."""

import fcntl
from contextlib import contextmanager

import pytest

from npurt import build
from tests.foreign.sources import MissingError


@contextmanager
def _prepared(what):
    """Lock what several processes would make, and skip the test where it cannot be had."""
    lock = build.ROOT / "build/foreign.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            yield
        except MissingError as error:
            pytest.skip(f"{what}: {error}")


@pytest.fixture(scope="session")
def prepared():
    """Return a context manager in which a program, named for the reader, is made ready to run."""
    return _prepared


@pytest.fixture(scope="session")
def preload():
    """Return a function from the simulator's report to what an environment needs for it to run."""
    (path,) = build.make(build.PACKAGE, build.host(), ["rknpu"])

    def env(report):
        settings = f"log=1 hang_ms=1 nodes=accel0 report={report}"
        return {"LD_PRELOAD": str(path), "NPURT_SIM_RKNPU": settings}

    return env
