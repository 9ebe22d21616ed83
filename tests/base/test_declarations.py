"""Test cffi's declarations of a header: parsed when npurt is built, used for that header only."""

import pytest

from npurt.base import declarations, library
from npurt.errors import DeviceNotFound

HEADER = """
#include <stdint.h>
enum size { NPURT_FEW = 3 };
typedef struct { int64_t n; float *x; } npurt_pair;
NPURT_API int npurt_count(const npurt_pair *pair);
"""


@pytest.fixture
def header(tmp_path):
    path = tmp_path / "pair.h"
    path.write_text(HEADER)
    return path


def test_both_ways_have_the_same_types(header):
    parsed = library.declare(header)
    declarations.write(header, declarations.beside(header))
    built = library.declare(header)

    assert type(built) is not type(parsed)
    for ffi in (parsed, built):
        assert ffi.sizeof("npurt_pair") == 16
        assert ffi.typeof("enum size").relements == {"NPURT_FEW": 3}
        assert ffi.new("npurt_pair *", {"n": 7}).n == 7


def test_what_another_header_gave_is_not_used(header):
    declarations.write(header, declarations.beside(header))
    header.write_text(HEADER.replace("int64_t n;", "int64_t n, m;"))

    assert library.declare(header).sizeof("npurt_pair") == 24


def test_a_header_that_is_missing_is_said_so(tmp_path):
    with pytest.raises(DeviceNotFound, match="cannot read"):
        library.declare(tmp_path / "none.h")
