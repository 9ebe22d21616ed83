"""Fixtures that build and fetch the programs of others, in one process at a time."""

import fcntl
from contextlib import contextmanager

import pytest

from npurt import build
from tests.foreign.sources import MissingError


@contextmanager
def _prepared(what):
    """Lock a build against other processes; skip the test if a source or tool is missing."""
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
    """Return a context manager that prepares a program; its argument is the program's name."""
    return _prepared


@pytest.fixture(scope="session")
def preload():
    """Return a function that maps the path of a report to the environment of the simulator."""
    (path,) = build.make(build.PACKAGE, build.host(), ["rknpu"])

    def env(report):
        settings = f"log=1 hang_ms=1 nodes=accel0 report={report}"
        return {"LD_PRELOAD": str(path), "NPURT_SIM_RKNPU": settings}

    return env
