"""The list of names that the DSP's shells export has whole rows, each with a source."""

import ctypes
import re

import pytest

from npurt.hexagon.doctor import shell_names

HEADERS = shell_names.headers()
QUALIFIED = re.compile(r"[\w./'\- ]+( \([\w /+]+\))?")  # "string.h (ISO C)", "qurt_sem.h"
LIBC = {name for name, header in HEADERS.items() if header.endswith(("(ISO C)", "(POSIX)"))}


def test_the_rows_are_sorted_and_no_name_stands_twice():
    rows = shell_names._rows()
    names = [row[0] for row in rows]
    assert names == sorted(set(names))


def test_every_row_has_versions_that_are_listed_and_a_header():
    for row in shell_names._rows():
        name, versions, header, *mark = row
        assert versions == "all" or shell_names.table()[name] < set(shell_names.LISTED), row
        assert re.fullmatch(r"[A-Za-z_]\w*", name), row
        assert QUALIFIED.fullmatch(header), row
        assert mark in ([], ["data"]), row


@pytest.mark.parametrize("version", shell_names.LISTED)
def test_every_version_has_the_names_that_all_versions_have(version):
    everywhere = {name for name, vs in shell_names.table().items() if vs == set(shell_names.LISTED)}
    assert everywhere < shell_names.exported(version)


def test_the_c_library_of_this_machine_has_the_names_of_the_standards():
    """glibc links `atexit` into every program, so that its library does not export it."""
    libc = ctypes.CDLL(None)
    assert len(LIBC) > 100
    assert [name for name in sorted(LIBC) if not hasattr(libc, name)] == ["atexit"]


def test_the_names_of_qurt_stand_under_its_headers():
    """`qurt_yield` is known from an inline function of QuRT's sched.h only."""
    odd = [n for n, h in HEADERS.items() if n.startswith("qurt_") and not h.startswith("qurt_")]
    assert odd == ["qurt_yield"]


def test_data_is_marked():
    assert shell_names.objects() == {"__stack_chk_guard", "qurt_mem_default_pool", "timezone"}
