"""Fixtures that run every kernel set on one thread, so that tests do not depend on the pool."""

import pytest

from npurt.cpu.kernels import abi
from npurt.cpu.pool.engine import CpuThreadPool
from tests.cpu.foreign import Recorded


class Runner:
    """A runner of cases with one kernel set of this process."""

    def __init__(self, isa):
        self.isa = isa
        self.engine = CpuThreadPool(1, isa)

    def __call__(self, case):
        """Build the program of *case*, run it, and return the arrays it wrote."""
        program = Recorded(self.engine)
        results = case(program)
        assert program.run() == len(program)
        return results


@pytest.fixture(scope="session", params=abi.isas())
def run(request):
    """Return a runner of each kernel set that this machine runs, in turn."""
    runner = Runner(request.param)
    yield runner
    runner.engine.close()


@pytest.fixture(scope="session")
def scalar():
    """Return a runner of the portable C kernels, which the others must equal bit for bit."""
    runner = Runner("scalar")
    yield runner
    runner.engine.close()
