"""Test wheels and the source archive in new environments: `make wheels` runs these tests.

They compile everything from nothing, and install packages from a package index.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import npurt
from tests import wheels
from tools import build

pytestmark = pytest.mark.release

MODEL = wheels.PROJECT / "tests/data/models/llama3/llama3-q8_0.gguf"
PLATFORMS = [*(f"linux-{target}" for target in build.TARGETS), wheels.PURE]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The source archive, unpacked: nothing is built there, and git does not know it."""
    archive = wheels.make(tmp_path_factory.mktemp("sdist"))
    return wheels.unpack(archive, tmp_path_factory.mktemp("unpacked"))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_wheel_made_of_the_source_archive_is_equal_to_the_byte(platform, unpacked, tmp_path):
    """Nothing is left of the folder, the time, or what was built there before."""
    ours = wheels.make(tmp_path / "ours", platform)
    again = wheels.make(tmp_path / "again", platform, unpacked)

    assert again.name == ours.name
    assert again.read_bytes() == ours.read_bytes()


def test_the_source_archive_tests_itself(unpacked):
    """Some tests of Python, of the kernels and of the simulators."""
    clean = {**os.environ, "PYTHONPATH": str(unpacked)}
    subprocess.run([sys.executable, "-m", "tools.build"], cwd=unpacked, env=clean, check=True)
    chosen = (
        "tests/test_public.py", "tests/test_layers.py", "tests/test_metadata.py",
        "tests/cpu/test_pack.py", "tests/hexagon/test_device.py", "tests/rknpu/test_simulated.py",
    )  # fmt: skip

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen],
        cwd=unpacked,
        env=clean,
        text=True,
        capture_output=True,
    )

    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def environment(wheel, folder):
    """Install *wheel* and what it needs into a new environment, with pip and no compiler."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean |= {"PATH": f"{folder}/bin", "HOME": str(folder)}
    subprocess.run(
        [folder / "bin/pip", "install", "-q", "--only-binary=:all:", wheel], check=True, env=clean
    )

    def run(*command):
        done = subprocess.run(
            [folder / "bin" / command[0], *command[1:]],
            cwd=folder, env=clean, text=True, capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


def test_pip_installs_what_the_commands_need_and_no_compiler(tmp_path):
    wheel = wheels.make(tmp_path / "dist", f"linux-{build.host()}")

    run = environment(wheel, tmp_path / "venv")

    assert run("npurt", "--version") == f"npurt {npurt.__version__}\n"
    assert "no broken requirements" in run("pip", "check").lower()
    assert "ziglang" not in run("pip", "list")
    assert "100.0 % of MACs on cpu" in run(
        "npurt", "run", "-m", str(MODEL), "-p", "Hello", "-n", "4", "--report"
    )
    assert "yes" in run("npurt", "devices")


def test_the_wheel_for_other_machines_writes_text_with_numpy(tmp_path):
    run = environment(wheels.make(tmp_path / "dist", wheels.PURE), tmp_path / "venv")

    assert [*(tmp_path / "venv/lib").rglob("npurt/**/*.so")] == []
    assert "100.0 % of MACs on numpy" in run(
        "npurt", "run", "-m", str(MODEL), "-p", "Hello", "-n", "4", "--report"
    )


def test_an_install_from_a_checkout_takes_the_libraries_of_a_finished_wheel(tmp_path):
    """And pip then fetches no compiler."""
    wheel = wheels.make(tmp_path / "made", f"linux-{build.host()}")
    unpacked = wheels.unpack(wheels.make(tmp_path / "sdist"), tmp_path / "unpacked")
    (unpacked / "dist").mkdir()
    (unpacked / "dist" / wheel.name).write_bytes(wheel.read_bytes())

    install = ("-m", "pip", "install", "-v", "--no-deps", "--target", tmp_path / "there", ".")
    done = subprocess.run(
        [sys.executable, *install],
        cwd=unpacked, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout
    assert f"takes the libraries of dist/{wheel.name}" in done.stdout
    assert "ziglang" not in done.stdout
    library = Path("npurt/cpu/libnpurt_cpu.so")
    built = wheels.PROJECT / "build" / build.host() / library
    assert (tmp_path / "there" / library).read_bytes() == built.read_bytes()
