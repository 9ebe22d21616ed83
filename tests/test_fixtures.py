"""Every fixture has a row in tests/data/README.md that says how it was made."""

import re
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"
README = DATA / "README.md"
ROWS = re.findall(r"^\| (`.+?) \| .+ \|$", README.read_text(), re.M)
PATTERNS = [pattern for row in ROWS for pattern in re.findall("`(.+?)`", row)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_a_row_names_is_there(pattern):
    assert list(DATA.glob(pattern))


def test_every_fixture_has_a_row():
    named = {path for pattern in PATTERNS for path in DATA.glob(pattern)}

    assert {path for path in DATA.rglob("*") if path.is_file()} - named == {README}
