"""Tests of the AMX kernel on any machine with AVX-512: amx_emulator.c executes tile instructions.

On a machine with AMX nothing is emulated, and the CPU executes the instructions.
"""

import re
import subprocess
from pathlib import Path

import pytest

from npurt.cpu.kernels import abi
from tests.cpu import cases
from tests.cpu.foreign import HERE, Foreign, Machine, Recorded, compiled, same
from tools import build

EMULATOR = HERE / "amx_emulator.c"
CASES = {name: case for name, case in cases.every_case().items() if "matmul" in name}
HAS_AMX = "amxint8" in abi.isas()

pytestmark = pytest.mark.skipif(
    "avx512vnni" not in abi.isas(), reason="no AVX-512: the kernel scales its sums with it"
)

# The misuse in each run of amx_misuse__amxint8.c, as the emulator reports it.
MISUSES = (
    "a tile is used before ldtilecfg",
    "the tile is not configured",
    "the columns of the first factor and rows of the second differ",
    "the rows of the sums and of the first factor differ",
    "the columns of the sums and of the second factor differ",
    "the tile is too large",
    "the tile is too large",
    "a tile has rows and no columns, or no rows",
    "no such palette",
    "a reserved byte of the configuration is set",
    "columns are not whole elements",
    "a tile is used before ldtilecfg",
    "a product needs three different tiles",
    "not a tile instruction",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return the arrays of every case from one run of the driver, and the emulator's output."""
    folder = tmp_path_factory.mktemp("amx")
    machine = Machine((str(compiled("x86_64", folder, EMULATOR)),), force=True)
    index, _ = machine.isas()["amxint8"]
    programs = {name: Recorded(Foreign(index)) for name in CASES}
    arrays = {name: CASES[name](program) for name, program in programs.items()}
    said = machine.run_all(list(programs.values()), folder)
    return arrays, said


@pytest.mark.parametrize("name", CASES)
def test_a_product_equals_that_of_the_portable_kernels(results, scalar, name):
    arrays, _ = results

    for have, want in zip(arrays[name], scalar(CASES[name]), strict=True):
        same(have, want)


def test_the_tile_instructions_were_executed_one_way_or_the_other(results):
    _, said = results
    (emulated,) = re.findall(r"amx_emulator: (\d+) instructions", said)

    assert (int(emulated) == 0) == HAS_AMX


@pytest.fixture(scope="module")
def misuse(tmp_path_factory) -> Path:
    """Return the path of the program that misuses tiles."""
    sources = [HERE / "amx_misuse__amxint8.c", EMULATOR]
    return build.compile_executable(sources, "x86_64", tmp_path_factory.mktemp("amx") / "misuse")


def test_the_emulator_multiplies_tiles(misuse):
    """A product of 5 x 12 by 12 x 7, checked in C, is right and changes only its tile."""
    assert subprocess.run([misuse, "0"], capture_output=True).returncode == 0


@pytest.mark.parametrize(("number", "why"), list(enumerate(MISUSES, start=1)))
def test_the_emulator_refuses_what_the_manual_forbids(misuse, number, why):
    """Each misuse ends the program; without permission, tiles raise SIGILL on every CPU."""
    done = subprocess.run([misuse, str(number)], text=True, capture_output=True)

    assert (done.returncode, done.stderr) == (70, f"amx_emulator: {why}\n")
