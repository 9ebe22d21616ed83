"""Signals that end the program: at its start, in an import, and while it writes a file."""

import signal

import pytest

from tests.cli.conftest import spawn
from tests.llm import tiny

MODEL = tiny.path("llama3", "q8_0")
AT_IMPORT = """
import os, runpy, signal, sys
signal.signal({number}, signal.{before})  # whatever the tests were started with
class Finder:
    def find_spec(name, path, target=None):
        if name == {module!r}:
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder)
runpy.run_module("npurt", run_name="__main__", alter_sys=True)
"""
AT_WRITING = """
import os, runpy, signal
signal.signal({number}, signal.{before})
sync = os.fsync
def fsync(descriptor):
    os.kill(os.getpid(), {number})
    sync(descriptor)
os.fsync = fsync
runpy.run_module("npurt", run_name="__main__", alter_sys=True)
"""


def usual(number):
    """Return the name of the handler that Python installs at its start."""
    return "default_int_handler" if number == signal.SIGINT else "SIG_DFL"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["npurt.cli", "npurt.cli.verbs.run", "npurt.llm.decode.llama",
                                    "numpy", "datetime"])  # fmt: skip
def test_a_signal_at_the_start_ends_the_program_quietly(module, number):
    """A signal in an import prints no traceback, though numpy raises ImportError instead."""
    program = ("-c", AT_IMPORT.format(module=module, number=int(number), before=usual(number)))
    result = spawn("run", "-m", MODEL, "-p", "Hello", "-n", 1, program=program)

    # before any handler is installed the signal itself ends the process
    died = module == "npurt.cli" and number != signal.SIGINT
    assert result == (-number if died else 128 + number, "", "")


@pytest.mark.parametrize("module", ["npurt.cli.verbs.run", "npurt.llm.decode.llama", "numpy"])
def test_json_says_that_it_was_interrupted_also_before_there_is_a_model(module):
    program = ("-c", AT_IMPORT.format(module=module, number=2, before="default_int_handler"))
    result = spawn("run", "-m", MODEL, "-p", "Hello", "--json", program=program)

    assert result == (130, '{"interrupted": true}\n', "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_half_written(tmp_path, number):
    program = ("-c", AT_WRITING.format(number=int(number), before=usual(number)))
    result = spawn("quantize", MODEL, tmp_path / "out.gguf", "q4_0", program=program)

    assert result.code == 128 + number
    assert result.out == ""
    assert "Traceback" not in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_so(tmp_path, number):
    """A signal that the parent process ignores, as ``nohup`` does, does not end the program."""
    program = ("-c", AT_WRITING.format(number=int(number), before="SIG_IGN"))
    result = spawn("quantize", MODEL, tmp_path / "out.gguf", "q4_0", program=program)

    assert result.code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_the_handlers_of_the_caller_come_back(npurt):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    npurt("devices")

    assert [signal.getsignal(number) for number in numbers] == before
