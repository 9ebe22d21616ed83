"""Test facts that C and Python share: Python reads them from the C files."""

import pytest

from npurt.errors import DeviceNotFound
from npurt.hexagon.idl import shared


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return a function that writes a shared file with a given name."""
    monkeypatch.setattr(shared, "_CHECKOUT", tmp_path)

    def write(name, text):
        (tmp_path / name).write_text(text)

    return write


def test_numbers_are_those_that_the_header_defines(written):
    written(
        "a.h",
        "#define A_H\n#define NPURT_A 12u /* a unit\n #define NPURT_B 1u */\n"
        "#define NPURT_MAGIC 0x10u\nenum { NPURT_C = 3, NPURT_D = 4 };\nint NPURT_X(int A = 5);\n",
    )

    assert shared.numbers("a.h") == {"NPURT_A": 12, "NPURT_MAGIC": 16, "NPURT_C": 3, "NPURT_D": 4}


def test_rows_are_the_lines_of_one_table(written):
    written("t.inc", "/*\nROW(a, 0)\n*/\nROW(b,  -1)\nOTHER(c, 2)\n  ROW(d, 3)\nROW(e, 4)\n")

    assert shared.rows("t.inc", "ROW") == [["b", "-1"], ["e", "4"]]


def test_a_file_that_is_missing_is_an_error_with_a_remedy(written):
    with pytest.raises(DeviceNotFound, match=r"cannot read gone\.h") as caught:
        shared.numbers("gone.h")

    assert "reinstall" in caught.value.remedy
