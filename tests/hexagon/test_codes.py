"""Tests that each FastRPC return code has a name, a side, a cause and a remedy."""

import errno
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import (
    DeviceFull,
    DeviceLost,
    DeviceNotFound,
    DeviceTimeout,
    DriverError,
    NpurtError,
    SettingError,
)
from npurt.hexagon.fastrpc import codes
from npurt.hexagon.idl.skel import SUPPORT

HAP = (Path(__file__).parents[2] / "dsp/hap.h").read_text()
OPEN, INVOKE = "remote_handle64_open", "remote_handle64_invoke"

# Literal lines of AEEStdErr.h (qualcomm/fastrpc v1.0.5), some from each stretch of numbers.
KNOWN = {
    0x00: "AEE_SUCCESS",
    0x01: "AEE_EFAILED",
    0x02: "AEE_ENOMEMORY",
    0x06: "AEE_EUNABLETOLOAD",
    0x0C: "AEE_EEXPIRED",
    0x0E: "AEE_EBADPARM",
    0x14: "AEE_EUNSUPPORTED",
    0x16: "AEE_ERESOURCENOTFOUND",
    0x1A: "AEE_EALREADY",
    0x27: "AEE_ENOSUCH",
    0x2C: "AEE_EINVHANDLE",
    0x2E: "AEE_EINTERRUPTED",
    0x42: "AEE_ENOSUCHSYMBOL",
    0x48: "AEE_ENOSUCHMAP",
    0x58: "AEE_EFGETS",
    0x68: "AEE_ENORPCMEMORY",
    0x6B: "AEE_ENOTINITIALIZED",
    0x72: "AEE_ECONNREFUSED",
    0x87: "AEE_EMAPALREADYPRESENT",
    0x8A: "AEE_ENOSESSION",
    0x194: "AEE_ESTUBSKELVERMISMATCH",
    0x200: "AEE_ERPC",
    0x201: "AEE_EFILE",
    0x204: "AEE_EWOULDBLOCK",
    0xFFFFFFFF: "AEE_EUNKNOWN",
}

# Codes seen on boards, with the expected error class and a word of the cause or remedy.
SEEN = [
    (OPEN, 0x72, errno.ENOENT, DeviceNotFound, "fastrpc-cdsp"),
    (OPEN, 0x72, errno.EBUSY, DeviceNotFound, "in use"),
    (OPEN, 0xFFFFFFFF, errno.ETIMEDOUT, DriverError, "shell"),
    ("remote_handle_control", 0xFFFFFFFF, errno.EPERM, DriverError, "old firmware"),
    (OPEN, 0x0E, 0, DriverError, "_dom="),
    (INVOKE, 0x0E, 0, DriverError, "overruns"),
    ("dspqueue_write", 0x0E, 0, DriverError, "larger than the queue"),
    (OPEN, 0x80000406, 0, DriverError, "skel"),
    (OPEN, 0x80000442, 0, DriverError, "entry point"),
    (OPEN, 0x80000411, 0, DriverError, "URI"),
    (OPEN, 0x45, 0, DriverError, "search path"),
    (OPEN, 0x80000445, 0, DriverError, "search path"),
    (INVOKE, 0x80000414, 0, DriverError, "method"),
    (OPEN, 0x80000416, 0, DriverError, "resources"),
    (OPEN, 0x8000054F, 0, DriverError, "shell"),
    (OPEN, 0x80000600, 0, DriverError, "':'"),
    (OPEN, 0x80000402, 0, DeviceFull, "memory"),
    (INVOKE, 0x8000040D, 0, DeviceLost, "crashed"),
    (INVOKE, 0x8000042C, 0, DeviceLost, "restarted"),
    ("remote_handle64_close", 0x8000041D, 0, DriverError, "old DSP"),
    (OPEN, 0xFFFFFFFB, 0, DriverError, "old DSP"),
    (OPEN, 0x4E, errno.EACCES, DriverError, "permi"),
    ("remote_mmap64", 0x58, 0, DriverError, "heap"),
    (INVOKE, 0x27, 0, DeviceLost, "gone"),
    ("dspqueue_read", 0x2E, 0, DeviceLost, "ran out of memory"),
    (INVOKE, 0x68, errno.EPIPE, DeviceLost, "restarted"),
    ("dspqueue_write", 0x48, 0, DriverError, "not mapped"),
    ("fastrpc_mmap", 0x6B, 0, DriverError, "no session"),
    ("fastrpc_mmap", 0x1A, 0, DriverError, "already"),
    ("fastrpc_mmap", 0x87, 0, DriverError, "already"),
    ("fastrpc_mmap", 0x01, 0, DriverError, "addresses"),
    ("remote_session_control", 0x05, 0, DriverError, "signed"),
    ("remote_session_control", 0x8A, 0, DriverError, "four sessions"),
    ("dspqueue_read", 0x0C, 0, DeviceTimeout, "in time"),
    (OPEN, 0x0C, errno.ETIMEDOUT, DeviceTimeout, "in time"),
    ("dspqueue_write_noblock", 0x204, 0, DriverError, "full"),
    ("remote_handle64_close", 0x2C, 0, DriverError, "handle is closed"),
    (OPEN, 0x194, 0, DriverError, "versions"),
    (OPEN, 0x80000481, 0, DriverError, "signature"),
    (OPEN, 0x80000482, 0, DriverError, "signature"),
    (OPEN, 0x80000594, 0, DriverError, "versions"),
    (INVOKE, 0x80000465, 0, DriverError, "addresses"),
    (INVOKE, 0x8000042D, 0, DriverError, "map more blocks"),
    (INVOKE, 0x8000044E, 0, DriverError, "without permission"),
]


@pytest.mark.parametrize("value", KNOWN, ids=hex)
def test_a_number_has_the_name_of_the_header_on_either_side(value):
    assert codes.decode(value, "rpcmem_alloc").name == KNOWN[value]
    if value not in (0, 0xFFFFFFFF):
        assert codes.decode(0x80000400 + value).name == KNOWN[value]
        assert codes.decode(0x80000400 + value).side == "DSP"


@pytest.mark.parametrize(("call", "code", "number", "kind", "word"), SEEN)
def test_a_code_seen_on_boards_says_why_and_what_to_do(call, code, number, kind, word):
    error = codes.failed(call, code, number)

    assert type(error) is kind
    assert f"{call} failed with {code:#x} (" in error.what
    assert word in str(error)
    assert error.remedy
    if number:
        assert f"errno {number} (" in error.what
    if isinstance(error, DriverError):
        assert (error.call, error.code) == (call, code)


def test_every_row_of_advice_is_reached():
    """A row hidden by an earlier row would never be used."""
    for row in codes.ADVICE:
        explained = codes.decode(row.code, row.calls[0] if row.calls else "")
        assert (explained.cause, explained.remedy) == (row.cause, row.remedy)


# hap.h of the skel, and what is generated around it.
OF_THE_SKEL = [int(code, 16) for code in re.findall(r"\(int\) (0x8000\w{4})", HAP + SUPPORT)]


@pytest.mark.parametrize("code", OF_THE_SKEL, ids=hex)
def test_what_our_own_code_on_the_dsp_answers_has_a_cause(code):
    assert len(OF_THE_SKEL) >= 12
    assert codes.decode(code, INVOKE).cause != codes.decode(0x7FFF_FFFF).cause


def test_our_own_codes_on_the_dsp_are_called_as_in_the_header():
    of_hap = re.findall(r"DSP_(E_\w+) = \(int\) (0x8000\w{4})", HAP)
    ours = [f"AEE_{name.replace('_', '')}" for name, _ in of_hap]

    assert len(of_hap) >= 7
    assert ours == [codes.decode(int(code, 16)).name for _, code in of_hap]


def test_an_errno_is_told_beside_what_the_cpu_said_only():
    """A code from the DSP does not set errno, which then belongs to another call."""
    assert "errno" not in codes.failed(INVOKE, 0x8000040D, errno.ENOENT).what
    assert "errno 2 (" in codes.failed(OPEN, 0xFFFFFFFF, errno.ENOENT).what


def test_0x68_is_memory_from_an_allocation_and_a_restart_from_anything_else():
    memory = codes.failed("rpcmem_alloc2", 0x68)
    restart = codes.failed(INVOKE, 0x68)
    both = codes.failed("rpcmem_alloc2", 0x68, errno.ECONNRESET)

    assert (type(memory), type(restart), type(both)) == (DeviceFull, DeviceLost, DeviceLost)
    assert "AEE_ENORPCMEMORY" in memory.what
    assert "AEE_ECONNRESET" in restart.what


def test_numbers_are_shown_as_logs_write_them():
    """-2147482112 is 0x80000600 in the logs of fastrpc#231."""
    text = str(codes.decode(-2147482112))

    assert text == "0x80000600 (-2147482112, AEE_ERPC, said by the DSP)"
    assert codes.parse("-2147482112") == codes.parse("0x80000600") == codes.parse("2147485184")


@given(st.integers(-(1 << 31), (1 << 32) - 1), st.sampled_from(["", OPEN, INVOKE, "rpcmem_alloc"]))
def test_any_number_is_explained_and_read_back(number, call):
    explained = codes.decode(number, call)

    assert explained.raw == number % (1 << 32)
    assert explained.name
    assert explained.cause
    assert explained.remedy
    shown = re.match(r"(0x[0-9a-f]+) \((-?\d+), ", str(explained))
    assert codes.parse(shown[1]) == codes.parse(shown[2]) == explained.raw
    assert isinstance(codes.failed(call or "f", number), NpurtError)


@pytest.mark.parametrize("text", ["", "0x", "forty", "0x100000000", "-2147483649", "1e3"])
def test_what_is_no_code_is_refused(text):
    with pytest.raises(SettingError, match="not a FastRPC code"):
        codes.parse(text)


@pytest.mark.parametrize(
    ("code", "side"),
    [(0x72, "CPU"), (0x80000472, "DSP"), (0x800007FF, "DSP"), (0x80000800, "CPU"),
     (0x27, "CPU or DSP"), (0x2E, "CPU or DSP"), (0x68, "CPU or DSP"), (0x204, "CPU or DSP")],
)  # fmt: skip
def test_the_side_is_told_by_the_offset_and_left_open_where_there_is_none(code, side):
    assert codes.decode(code, INVOKE).side == side
