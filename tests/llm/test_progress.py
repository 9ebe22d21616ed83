"""A progress bar is for people who wait at a terminal, and for nobody else."""

import io
import sys

import pytest

from npurt.llm import progress
from npurt.llm.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A terminal as standard error, on which bars appear at once."""
    monkeypatch.setattr(progress, "PATIENCE", 0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def work(**options):
    with Progress("load", 10, "B", **options) as bar:
        for _ in range(10):
            bar.add(1)


def test_a_bar_is_shown_on_a_terminal_and_wiped_off(terminal):
    work()

    assert "load" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")


def test_nobody_else_sees_one(terminal, monkeypatch):
    work(shown=False)
    assert terminal.getvalue() == ""

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    work()
    assert sys.stderr.getvalue() == ""


def test_what_takes_a_moment_shows_none(terminal, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 1000)
    work()

    assert terminal.getvalue() == ""


def test_a_failure_ends_the_bar(terminal):
    with pytest.raises(ZeroDivisionError), Progress("load", 10, "B"):
        raise ZeroDivisionError
    assert terminal.getvalue().endswith("\r")
