"""Exit statuses, settings, and the command in its own process."""

import os
import re
import subprocess
import sys

import _cffi_backend
import pytest

import npurt as library
from npurt.cli import VERBS
from tests.cli.conftest import assert_failed, assert_usage, environment, spawn
from tests.limits import HANG_SECONDS
from tests.llm import tiny

MODEL = tiny.path("llama3", "q8_0")

# --- Usage and settings ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("fly",),
        ("run",),
        ("run", "-m", MODEL),
        ("run", "-p", "x"),
        ("run", "-m", MODEL, "-p", "x", "-f", "y"),
        ("run", "-m", MODEL, "-p", "x", "-n", "many"),
        ("run", "-m", MODEL, "-p", "x", "-n", -2),
        ("run", "-m", MODEL, "-p", "x", "-s", -2),
        ("run", "-m", MODEL, "-p", "x", "--kv-type", "q4_0"),
        ("run", "-m", MODEL, "-p", "x", "--fly"),
        ("chat",),
        ("bench",),
        ("bench", "-m", MODEL, "-p", "a"),
        ("bench", "-m", MODEL, "-p", "-3"),
        ("bench", "-m", MODEL, "-p", "8,,9"),
        ("bench", "matmul", "--m", 1, "--k", 32),
        ("bench", "matmul", "--m", 1, "--k", 32, "--n", 8, "--type", "q9_0"),
        ("perplexity", "-m", MODEL),
        ("embed", "-p", "x"),
        ("embed", "-m", MODEL, "-p", "x", "-f", "y"),
        ("embed", "-m", MODEL, "-p", "x", "--pooling", "max"),
        ("embed", "-m", MODEL, "-p", "x", "--embd-normalize", 7),
        ("embed", "-m", MODEL, "-p", "x", "--embd-separator", ""),
        ("models", "eat"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_status_2(npurt, arguments):
    assert_usage(npurt(*arguments))


def test_every_verb_has_help(npurt):
    everything = npurt("--help").out
    for name in VERBS:
        assert name in everything
        result = npurt(name, "--help")
        assert result.code == 0
        assert result.out.startswith(f"usage: npurt {name}")


def test_settings_that_hold_nonsense_are_errors_like_any_other(npurt, monkeypatch):
    command = ("run", "-m", MODEL, "-p", "x", "-n", 1)
    for variable, value in {
        "NPURT_DEBUG": "loud",
        "NPURT_VERIFY": "perhaps",
        "NPURT_THREADS": "many",
        "NPURT_CPU_ISA": "avx1024",
        "NPURT_DEVICE": "abacus",
    }.items():
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert_failed(npurt(*command), value, code=2)


def test_debugging_lets_errors_through(npurt, monkeypatch):
    monkeypatch.setenv("NPURT_DEBUG", "1")

    with pytest.raises(library.ModelFormatError, match="/nowhere"):
        npurt("run", "-m", "/nowhere", "-p", "x")


def test_a_library_without_cpu_kernels_is_refused(tmp_path):
    command = ("run", "-m", MODEL, "-p", "x")
    other = tmp_path / "cpu/libnpurt_cpu.so"

    absent = spawn(*command, NPURT_LIBRARIES=str(tmp_path))
    other.parent.mkdir()
    other.symlink_to(_cffi_backend.__file__)
    wrong = spawn(*command, NPURT_LIBRARIES=str(tmp_path))

    assert_failed(absent, str(other), "unset NPURT_LIBRARIES")
    assert_failed(wrong, str(other), "unset NPURT_LIBRARIES")


def test_control_c_is_status_130(npurt, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("npurt.llm.decode.llama.Llama", interrupted)

    assert npurt("run", "-m", MODEL, "-p", "x") == (130, "", "")


# --- In its own process ---------------------------------------------------------------------------


def test_exit_statuses_reach_the_shell():
    assert spawn("devices").code == 0
    assert_failed(spawn("run", "-m", "/nowhere", "-p", "x"))
    assert_usage(spawn("fly"))


def test_debugging_shows_the_traceback():
    result = spawn("run", "-m", "/nowhere", "-p", "x", NPURT_DEBUG="1")

    assert result.code == 1
    assert "Traceback" in result.err
    assert "remedy" in result.err


def test_a_reader_that_went_away_is_no_error_message():
    command = [sys.executable, "-m", "npurt", "run", "-m", str(MODEL), "-p", "x", "-n", "4"]
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        result = subprocess.run(
            command, stdout=pipe, stderr=subprocess.PIPE, timeout=HANG_SECONDS, env=environment()
        )

    assert (result.returncode, result.stderr) == (1, b"")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "-m", MODEL, "-p", "x", "-n", "4"),
        ("run", "-m", MODEL, "-p", "x", "-n", "4", "--json"),
        ("models", "--json"),
    ],
)
def test_output_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path, command):
    """A file-size limit simulates a full disk."""
    with open(tmp_path / "out", "wb") as full:
        result = subprocess.run(
            ["sh", "-c", 'ulimit -f 0; exec "$0" -m npurt "$@"', sys.executable, *command],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=HANG_SECONDS,
            env=environment(PYTHONUNBUFFERED=""),
        )

    said = rb"npurt: cannot write the output: File too large\n  remedy: .*\n"
    assert result.returncode == 1
    assert re.fullmatch(said, result.stderr), result.stderr


def test_output_that_is_closed_is_no_error():
    result = subprocess.run(
        ["sh", "-c", '"$0" -m npurt models >&-', sys.executable],
        stderr=subprocess.PIPE, timeout=HANG_SECONDS, env=environment(),
    )  # fmt: skip

    assert (result.returncode, result.stderr) == (0, b"")


def test_text_that_the_terminal_cannot_show_is_replaced():
    result = spawn("run", "-m", MODEL, "-p", "x", "--temp", 3, "-s", 1, "-n", 60,
                   PYTHONIOENCODING="ascii")  # fmt: skip

    assert result.code == 0
    assert "?" in result.out
