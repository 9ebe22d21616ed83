"""Test the functions that the compiler calls implicitly on the DSP, emulated: division, copies."""

import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import build

AREA = bytes(range(1, 65))
EDGES = (0, 1, 2, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)

numbers = st.sampled_from(EDGES) | st.integers(0, 2**64 - 1) | st.integers(0, 1000)
places = st.tuples(st.integers(0, 64), st.integers(0, 64), st.integers(0, 64)).filter(
    lambda p: max(p[0], p[1]) + p[2] <= 64
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function that passes records to rtlib.c and returns its output."""
    folder = tmp_path_factory.mktemp("rtlib")
    program = build.compile_program([Path(__file__).with_name("rtlib.c")], folder / "rtlib")

    def run_records(records):
        data = b"".join(struct.pack("<4I2Q", *record) for record in records)
        done = subprocess.run(
            ["qemu-hexagon", program], input=data, capture_output=True, check=True
        )
        return done.stdout

    return run_records


def signed(value, bits):
    value %= 1 << bits
    return value - (value >> (bits - 1) << bits)


def divided(what, a, b):
    """Return the result of C's division of kind *what*, as an unsigned number of 64 bits."""
    bits = 64 if what < 4 else 32
    is_signed = what % 4 >= 2
    a, b = (signed(a, bits), signed(b, bits)) if is_signed else (a % (1 << bits), b % (1 << bits))
    quotient = abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)
    return (quotient if what % 2 == 0 else a - b * quotient) % (1 << 64)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=50))
def test_division_is_that_of_c(run, pairs):
    """The test has all eight kinds, without division by 0 and without overflow."""
    records = []
    wanted = []
    for a, b in pairs:
        for what in range(8):
            bits = 64 if what < 4 else 32
            overflows = (
                what % 4 >= 2 and signed(b, bits) == -1 and signed(a, bits) == -(1 << bits - 1)
            )
            if b % (1 << bits) and not overflows:
                records.append((what, 0, 0, 0, a, b))
                wanted.append(divided(what, a, b))

    assert run(records) == struct.pack(f"<{len(wanted)}Q", *wanted)


@given(st.lists(places, min_size=1, max_size=50), st.integers(0, 255))
def test_copying_moves_these_bytes_and_no_others(run, copies, value):
    """Alignment and length are arbitrary; for memmove, the parts may overlap."""
    records = []
    wanted = []
    for to, start, count in copies:
        moved = AREA[:to] + AREA[start : start + count] + AREA[to + count :]
        filled = AREA[:to] + bytes([value]) * count + AREA[to + count :]
        records.append((9, to, start, count, 0, 0))
        records.append((10, to, start, count, value, 0))
        wanted += [moved, filled]
        if to + count <= start or start + count <= to:
            records += [(8, to, start, count, 0, 0), (12, to, start, count, 0, 0)]
            wanted += [moved, moved]

    assert run(records) == b"".join(wanted)


@given(st.lists(places, min_size=1, max_size=20))
def test_comparing_says_which_differs_first(run, parts):
    records = [(11, a, b, count, 0, 0) for a, b, count in parts]
    wanted = [bytes([(a - b) % 256 if n else 0]) + AREA[1:] for a, b, n in parts]

    assert run(records) == b"".join(wanted)
