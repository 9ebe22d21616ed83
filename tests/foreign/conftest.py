"""A fixture that fetches the programs of others, in one process at a time."""

import fcntl
from contextlib import contextmanager

import pytest

from tests.foreign.debian import MissingError
from tools import build


@contextmanager
def _prepared(what):
    """Lock a download against other processes; skip the test if something is missing."""
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
