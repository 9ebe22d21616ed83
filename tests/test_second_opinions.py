"""The table of lists that npurt and a simulator share: its files and tests exist, and are used."""

import re

import pytest

from npurt.hexagon.fastrpc import codes
from tests.conftest import PROJECT

PAGE = (PROJECT / "docs/simulators.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## Lists that npurt and a simulator share", 1)[1].split("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in SECTION.splitlines()
    if line.startswith("| ")
][1:]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_files_and_tests_that_exist(row):
    assert len(row) == 5
    for cell in row[1:4]:
        for path in re.findall(r"`([\w./]+/[\w./]+)`", cell):
            assert (PROJECT / path).exists(), path
    tests = re.findall(r"`([^`]+)`", row[4])
    assert tests
    for test in tests:
        path, _, name = test.partition("::")
        text = (PROJECT / path).read_text(encoding="utf-8")
        assert f"\ndef {name or 'test_'}" in text, test


def test_every_list_has_someone_who_decides_or_says_nobody():
    assert all(row[3] for row in ROWS)
    assert 0 < sum("nobody" in row[3] for row in ROWS) < len(ROWS) / 2


def test_every_file_of_declarations_of_a_simulator_is_in_the_table():
    """A header of a simulator that names a source outside this project holds a shared list."""
    inner = {"sim/fastrpc/shell/libc.h"}  # the C library's functions, declared for the shell itself
    for path in sorted((PROJECT / "sim").rglob("*.h")):
        text = path.read_text(encoding="utf-8")
        outside = re.search(
            r"(qualcomm/fastrpc|include/uapi|rknpu_ioctl|qurt_\w+\.h|misc/fastrpc)", text
        )
        name = str(path.relative_to(PROJECT))
        if outside and name not in inner:
            assert f"`{name}`" in SECTION, name


@pytest.mark.parametrize("path", ["sim/fastrpc/aee.h", "sim/fastrpc/shell/shell.h", "dsp/hap.h"])
def test_codes_of_the_simulator_have_the_names_of_the_header(path):
    """DSP_E_NO_MEMORY has AEE_ENOMEMORY's number, with the DSP's offset.  0x68 has two names."""
    text = (PROJECT / path).read_text(encoding="utf-8")
    rows = re.findall(r"\b(AEE|DSP)_(\w+) = (?:\(int\) )?(0x[0-9a-f]+|\d+),", text)
    assert len(rows) > 7
    other = {"INVALIDHANDLE": "INVHANDLE", "NOMAP": "NOSUCHMAP", "NOSYMBOL": "NOSUCHSYMBOL",
             "BADPARAMETER": "BADPARM"}  # fmt: skip
    for prefix, name, value in rows:
        number = int(value, 0) - (codes.DSP.start if prefix == "DSP" and value != "0" else 0)
        plain = name.removeprefix("E_").replace("_", "")
        want = codes.NAMES[number].removeprefix("AEE_")
        short = want.removeprefix("E")
        known = {want, short, *(long for long, code in other.items() if code == short)}
        assert plain in known or name in ("OK", "SUCCESS", "ECONNRESET"), name
