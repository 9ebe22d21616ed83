"""Test docs/extending: its changes apply to a copy of npurt, and its commands succeed."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import extending
from tests.limits import HANG_SECONDS
from tools.build import host_code as host

PROJECT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    PROJECT / f"docs/extending/{name}.md"
    for name in ("architecture", "instruction-set", "op", "tensor-type")
]
COPIED = ("npurt", "tests", "tools", "sim", "pyproject.toml", ".clang-format")
BUILD = """
from tools.build import host_code as host
host.OPTIMISE = ("-O1",)
host.build_library(host.host(), host.CPU / "libnpurt_cpu.so")
"""
SETS = """
from npurt.cpu.kernels import abi
lib = abi.lib()
names = [abi.ffi().string(lib.npurt_isa_name(i)).decode() for i in range(lib.npurt_isa_count())]
print((names, list(abi.isas())))
"""


def ignored(folder, names):
    """Return the names of caches, and of large files that only other tests read."""
    return {name for name in names if name in ("__pycache__", "data") or name.endswith(".gguf")}


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Return a compiled copy of npurt with the changes of all documents, and the changed files."""
    folder = tmp_path_factory.mktemp("npurt")
    for name in COPIED:
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, folder / name, ignore=ignored, symlinks=True)
        else:
            shutil.copy(PROJECT / name, folder)
    (folder / "tests/data").symlink_to(PROJECT / "tests/data")
    files = [path for text in DOCUMENTS for path in extending.apply(text.read_text(), folder)]
    run(folder, sys.executable, "-c", BUILD)
    return folder, files


def run(folder, *command):
    """Run a command in the copy; return its output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COV_", "NPURT_"))}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_the_commands_of_a_worked_example_succeed(path, changed):
    folder, _ = changed
    commands = extending.commands(path.read_text())
    assert commands
    if path.stem == "instruction-set":
        known, here = ast.literal_eval(run(folder, sys.executable, "-c", SETS))
        assert ("avxvnni" in known) == (host.host() == "x86_64")
        if "avxvnni" not in here:
            pytest.skip("this CPU has no AVX-VNNI: the example was compiled, and not run")

    for command in commands:
        first, *rest = shlex.split(command)
        assert first == "python"
        assert " passed" in run(folder, sys.executable, *rest, "-p", "no:cacheprovider")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_headings_count_the_files_that_are_changed(path):
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight")
    text = path.read_text()
    found = re.findall(r"^##? [^\n]*\b(\w+) files?$(.*?)(?=^## |\Z)", text, flags=re.M | re.S)

    for count, section in found:
        assert words.index(count) + 1 == len(set(re.findall(r"^ *\+\+\+ (\S+)$", section, re.M)))
    assert len(found) == {"op": 2}.get(path.stem, len(found))


def test_worked_examples_are_in_the_style_of_the_project(changed):
    folder, files = changed
    python = [path for path in files if path.suffix == ".py"]
    c = [path for path in files if path.suffix in (".c", ".h")]

    run(folder, sys.executable, "-m", "ruff", "check", "--no-cache", *python)
    run(folder, sys.executable, "-m", "ruff", "format", "--no-cache", "--check", *python)
    clang_format = shutil.which("clang-format", path=str(Path(sys.executable).parent))
    run(folder, clang_format, "--dry-run", "--Werror", *c)
