"""Test that the variants of the inner loops give the same bits, on both architectures."""

import subprocess
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS
from tools import build

SIM = build.ROOT / "sim/rknpu"
SOURCES = [
    *sorted(SIM.glob("dot__*.c")),
    SIM / "floats__vec.c",
    SIM / "kernels.c",
    Path(__file__).with_name("kernels.c"),
]
EMULATORS = {"x86_64": ["qemu-x86_64", "-cpu", "max"], "aarch64": ["qemu-aarch64", "-cpu", "max"]}
COMPARED = {
    "x86_64": {"dot__avx2", "floats__avx2"},
    "aarch64": {"dot__dotprod", "floats__fp16"},
}


def compare(tmp_path, target, command):
    program = build.compile_executable(
        SOURCES, target, tmp_path / "kernels", includes=[SIM, build.ROOT / "npurt/cpu/kernels"]
    )
    done = subprocess.run([*command, program], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("target", EMULATORS)
def test_every_variant_gives_the_same_bits(tmp_path, target):
    assert compare(tmp_path, target, EMULATORS[target]) >= COMPARED[target]


def test_the_variants_of_this_machine_give_the_same_bits(tmp_path):
    compare(tmp_path, build.host(), [])
