"""Test that every fixture has a row in tests/data/README.md with its provenance."""

import re
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
DATA = PROJECT / "tests/data"
README = DATA / "README.md"
ROWS = re.findall(r"^\| (`.+?) \| .+ \|$", README.read_text(), re.M)
PATTERNS = [pattern for row in ROWS for pattern in re.findall("`(.+?)`", row)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_a_row_names_is_there(pattern):
    assert list(DATA.glob(pattern))


def test_every_fixture_has_a_row():
    named = {path for pattern in PATTERNS for path in DATA.glob(pattern)}

    assert {path for path in DATA.rglob("*") if path.is_file()} - named == {README}


@pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="this is no checkout of git")
def test_what_is_no_text_is_a_fixture_or_a_picture():
    """A binary file that a script left in the checkout must not be committed."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT, check=True, text=True, capture_output=True
    ).stdout.split("\0")
    paths = [PROJECT / name for name in tracked if (PROJECT / name).is_file()]

    assert [
        path
        for path in paths
        if path.suffix != ".png" and DATA not in path.parents and b"\0" in path.read_bytes()
    ] == []
