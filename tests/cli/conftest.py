"""Fixtures that call the command line in this process or start it in a new process."""

import io
import os
import re
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from npurt.cli import main
from tests.limits import HANG_SECONDS

PROJECT = Path(__file__).resolve().parents[2]
Result = namedtuple("Result", "code out err")


def environment(**variables):
    """Return this process's environment with the checkout on Python's path, and *variables*."""
    return os.environ | {"PYTHONPATH": str(PROJECT), "TERM": "dumb"} | variables


@pytest.fixture
def npurt(capsys, monkeypatch):
    """Return a function that runs a command line here: ``npurt("devices", "--json")``."""

    def run(*arguments, stdin=b""):
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        try:
            code = main([str(argument) for argument in arguments])
        # argparse raises it with status 2 for a usage error, 0 after --help
        except SystemExit as stop:
            code = stop.code
        return Result(code, *capsys.readouterr())

    return run


def spawn(*arguments, stdin=b"", program=("-m", "npurt"), **variables):
    """Run ``python -m npurt`` with *arguments*, or another *program*, and wait until it ends."""
    process = subprocess.run(
        [sys.executable, *program, *(str(argument) for argument in arguments)],
        input=stdin,
        capture_output=True,
        timeout=HANG_SECONDS,
        env=environment(**variables),
    )
    return Result(process.returncode, process.stdout.decode(), process.stderr.decode())


def assert_failed(result, *said, code=1):
    """Check for exit status *code* and a one-line error with a remedy, without a traceback."""
    assert result.code == code, result
    assert result.out == ""
    assert re.fullmatch(r"npurt: .*\n  remedy: .*\n", result.err, re.DOTALL), result.err
    assert "Traceback" not in result.err
    for words in said:
        assert words in result.err


def assert_usage(result, *said):
    assert result.code == 2, result
    assert result.out == ""
    assert "usage: npurt" in result.err
    for words in said:
        assert words in result.err
