"""Tests of progress bars: they are shown only on a terminal, and only after a wait."""

import contextlib
import io
import re
import time

import pytest

from npurt.llm.session import progress
from npurt.llm.session.progress import Progress


class Screen(io.StringIO):
    def __init__(self, *, terminal):
        super().__init__()
        self._terminal = terminal

    def isatty(self):
        return self._terminal


def seen(monkeypatch, *, terminal=True, patience=0.0, shown=True, error=None):
    """Return the output of a bar whose work raises *error*, if one is given."""
    monkeypatch.setattr(progress, "PATIENCE", patience)
    with contextlib.redirect_stderr(Screen(terminal=terminal)) as screen:
        try:
            with Progress("load", 10, "B", shown=shown) as bar:
                time.sleep(0.15)  # tqdm shows nothing new within 0.1 s
                bar.add(5)
                if error:
                    raise error
        except ZeroDivisionError:
            assert error
    return screen.getvalue()


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_a_bar_is_shown_on_a_terminal_and_wiped_off_at_the_end(monkeypatch, error):
    assert re.search(r"load: +50%.*\r +\r$", seen(monkeypatch, error=error))


@pytest.mark.parametrize("others", [{"terminal": False}, {"shown": False}, {"patience": 1000.0}])
def test_nobody_else_sees_one(monkeypatch, others):
    assert seen(monkeypatch, **others) == ""
