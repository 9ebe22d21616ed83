"""Imports that fail while a program runs: packages that are gone or damaged, no file descriptor."""

import errno
import importlib
import os
import subprocess
import sys

import pytest

import npurt
from npurt.base import late
from npurt.errors import PackageError
from npurt.serve.http.errors import internal_error, of
from tests.llm import tiny

CHAT = (
    "import sys, npurt; llm = npurt.Llama(sys.argv[2], progress=False); break_it(); "
    "llm.chat([{'role': 'user', 'content': 'a'}])"
)
# Each package with a call that imports it.
USES = {
    "jinja2": CHAT,
    "tokenizers": "import sys, npurt; break_it(); npurt.Llama(sys.argv[2])",
    "numpy": "import npurt; break_it(); npurt.matmul",
    "huggingface_hub": "import npurt; break_it(); npurt.Llama('hf:a/b')",
    "llguidance": "import npurt; break_it(); npurt.Grammar.from_gbnf('root ::= \"a\"')",
}
# A folder first on sys.path has a package that hides the installed one.
BREAK = """
import sys
def break_it():
    for name in [*sys.modules]:
        assert name.partition(".")[0] != {name!r}, "imported before it is used"
    sys.path.insert(0, sys.argv[1])
"""
CATCH = """
try:
    exec(sys.argv[3])
except npurt.NpurtError as error:
    print(type(error).__name__, error)
"""


def run(folder, name, call):
    """Return what a process prints that runs *call* with the package *name* in *folder*."""
    script = f"import npurt\n{BREAK.format(name=name)}{CATCH}"
    found = subprocess.run(
        [sys.executable, "-c", script, str(folder), str(tiny.path("llama3", "q8_0")), call],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize("name", USES)
def test_a_damaged_package_is_named_with_the_command_that_installs_it(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise ImportError('invalid ELF header')")
    said = run(tmp_path, name, USES[name])
    assert said.startswith(f"PackageError the package {name} cannot be loaded: invalid ELF header")
    assert f"pip install --force-reinstall '{name.replace('_', '-')}" in said.replace("_", "-")


@pytest.mark.parametrize(
    ("content", "what", "remedy"),
    [
        (b"\0" * 40, "a file of npurt or of one of its packages is damaged", "a new environment"),
        (b"def (", "the package jinja2 cannot be loaded: invalid syntax", "--force-reinstall"),
        (b"import no_such", "the package no_such is not installed", "pip install 'no_such'"),
    ],
)
def test_a_file_that_a_crash_left_without_its_content_is_damaged(tmp_path, content, what, remedy):
    (tmp_path / "jinja2.py").write_bytes(content)
    said = run(tmp_path, "jinja2", USES["jinja2"])
    assert said.startswith(f"PackageError {what}")
    assert remedy in said


def test_a_program_without_file_descriptors_is_told_the_limit(tmp_path):
    (tmp_path / "jinja2.py").write_text(
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); import pdb"
    )
    said = run(tmp_path, "jinja2", USES["jinja2"])
    assert said.startswith("PackageError cannot load ")
    assert "Too many open files" in said
    assert "ulimit -n" in said


@pytest.mark.parametrize("verb", [["run", "-p", "a"], ["serve"]])
def test_a_verb_prints_which_package_is_damaged(tmp_path, verb):
    (tmp_path / "jinja2.py").write_text("raise ImportError('invalid ELF header')")
    done = subprocess.run(
        [sys.executable, "-m", "npurt", *verb, "-m", tiny.path("llama3", "q8_0")],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("npurt: the package jinja2 cannot be loaded")
    assert "--force-reinstall" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_answers_that_a_package_is_damaged_with_status_500():
    lost = ImportError("invalid ELF header", name="jinja2")
    for found in (internal_error(lost), of(late.package_error(lost))):
        assert (found.status, found.code) == (500, "package_missing")
        assert "jinja2 cannot be loaded" in found.what
        assert "start the server again" in found.remedy


def test_a_bug_of_npurt_stays_pythons_error():
    with pytest.raises(ModuleNotFoundError, match=r"npurt\.no_such"), late.imports():
        importlib.import_module("npurt.no_such")
    with pytest.raises(ImportError, match="cannot import name") as caught, late.imports():
        from npurt.errors import no_such  # noqa: F401
    assert not isinstance(caught.value, npurt.NpurtError)
    with pytest.raises(ValueError, match="else"), late.imports():
        raise ValueError("else")


def test_npurts_own_errors_pass_an_import():
    with pytest.raises(npurt.DownloadError), late.imports():
        raise npurt.DownloadError("no answer", remedy="wait")


def test_a_package_that_is_no_requirement_is_named_by_its_module():
    error = late.package_error(ModuleNotFoundError("No module named 'a'", name="a.b"))
    assert isinstance(error, PackageError)
    assert isinstance(error, ImportError)
    assert (error.what, error.remedy) == ("the package a is not installed", "pip install 'a'")


def test_a_module_that_this_python_lacks_needs_another_python():
    error = late.package_error(ModuleNotFoundError("No module named '_ssl'", name="_ssl"))
    assert error is not None
    assert "another Python" in error.remedy


def test_an_error_of_the_loader_has_the_systems_remedy():
    said = "libfoo.so.1: cannot open shared object file: Too many open files"
    for error in (ImportError(said, name="numpy"), OSError(errno.EMFILE, "Too many open files")):
        found = late.package_error(error)
        assert found is not None
        assert "ulimit -n" in found.remedy
