"""Tests of the aarch64 kernels, emulated: every op on three CPUs equals this machine's kernels.

qemu-aarch64 runs driver.c with the kernels compiled in; the resulting memory is compared bit for
bit with that of the portable kernels of this process.
"""

import subprocess

import pytest

from tests.cpu import cases, delta_cases
from tests.cpu.foreign import HERE, Foreign, Recorded, compiled, emulated, same, with_pool
from tests.limits import HANG_SECONDS
from tools import build

# A CPU with int8 matrix products, one with dot products only, one with neither.
SETS = {
    "max": ["i8mm", "dotprod", "neon", "scalar"],
    "cortex-a76": ["dotprod", "neon", "scalar"],
    "cortex-a53": ["neon", "scalar"],
}
CASES = cases.every_case() | delta_cases.every_case()


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """Return the path of the driver for aarch64."""
    return compiled("aarch64", tmp_path_factory.mktemp("aarch64"))


@pytest.fixture(scope="session", params=SETS)
def cpu(request, program):
    """Return the name of each CPU in turn, and the machine that emulates it."""
    return request.param, emulated(program, request.param)


@pytest.fixture(scope="session")
def results(cpu, tmp_path_factory):
    """Return the arrays of every case by kernel set and name, from one run of the emulator."""
    _, machine = cpu
    programs, arrays = [], {}
    for isa, (index, works) in machine.isas().items():
        for name, case in CASES.items():
            if works:
                programs.append(Recorded(Foreign(index)))
                arrays[isa, name] = case(programs[-1])
    machine.run_all(programs, tmp_path_factory.mktemp("results"))
    return arrays


def test_a_cpu_runs_the_kernel_sets_it_has_best_first(cpu):
    name, machine = cpu

    assert [isa for isa, (_, works) in machine.isas().items() if works] == SETS[name]


@pytest.mark.parametrize("name", CASES)
def test_a_case_leaves_what_the_portable_kernels_leave_here(results, scalar, name):
    wanted = scalar(CASES[name])

    for (isa, case), arrays in results.items():
        if case == name:
            for have, want in zip(arrays, wanted, strict=True):
                same(have, want, isa)


def test_threads_share_the_work_of_an_emulated_cpu(program, scalar, tmp_path):
    """Three threads give the same bits; the host may order memory more strictly than a real CPU."""
    case = CASES["matmul q4_k n70 k256 m50"]
    programs = [Recorded(Foreign(0)) for _ in range(4)]
    arrays = [case(p) for p in programs]
    for p in programs:
        p.threads = 3

    emulated(program, "max").run_all(programs, tmp_path)

    for run in arrays:
        for have, want in zip(run, scalar(case), strict=True):
            same(have, want)


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
@pytest.mark.parametrize("name", ["runs.c", "stopped.c"])
def test_the_pool_keeps_its_promises_on_an_emulated_cpu(name, late, tmp_path):
    """The programs of test_pool.py end with status 0 on an emulated CPU."""
    sources = with_pool(HERE / name, late=late)
    machine = emulated(build.compile_executable(sources, "aarch64", tmp_path / "program"), "max")

    assert subprocess.run([*machine.command, "3", "200"], timeout=HANG_SECONDS).returncode == 0
