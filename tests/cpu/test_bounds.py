"""Tests that no kernel accesses memory past its arrays: each ends at an inaccessible page."""

import pytest

from npurt.cpu.kernels import abi
from tests.cpu import cases, delta_cases
from tests.cpu.foreign import Foreign, Machine, Recorded, compiled, same
from tools import build

CASES = cases.every_case() | delta_cases.every_case()


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Return a machine with the driver compiled for it; driver.c describes the layout of arrays."""
    return Machine((str(compiled(build.host(), tmp_path_factory.mktemp("native"))),))


@pytest.mark.parametrize("isa", abi.isas())
def test_every_case_stays_within_its_arrays(machine, scalar, isa, tmp_path):
    index, _ = machine.isas()[isa]
    programs = {name: Recorded(Foreign(index)) for name in CASES}
    results = {name: CASES[name](program) for name, program in programs.items()}

    machine.run_all(list(programs.values()), tmp_path)

    for name, arrays in results.items():
        for have, want in zip(arrays, scalar(CASES[name]), strict=True):
            same(have, want, name)


def test_a_read_past_the_end_is_caught(machine, tmp_path):
    """One row too many crashes the driver, which shows that the test above can fail."""
    program = Recorded(Foreign(machine.isas()["scalar"][0]))
    CASES["quantise"](program)
    program.rows += 1

    with pytest.raises(AssertionError, match="ended with -11"):
        machine.run_all([program], tmp_path)
