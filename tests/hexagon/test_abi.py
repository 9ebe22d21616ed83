"""Tests that declarations have the sizes, offsets and numbers of libcdsprpc's headers on LP64.

Source: sizeof and offsetof of qualcomm/fastrpc v1.0.5 inc/remote.h, rpcmem.h, dspqueue.h, compiled
for x86-64; request numbers from the same headers.
"""

import subprocess
import sys

import pytest

from npurt.hexagon.fastrpc import abi

LAYOUTS = {  # struct -> size in bytes, {member: offset}
    "remote_buf": (16, {"pv": 0, "nLen": 8}),
    "remote_dma_handle": (8, {"fd": 0, "offset": 4}),
    "remote_arg": (16, {"buf": 0, "h": 0, "h64": 0, "dma": 0}),
    "remote_rpc_thread_params": (12, {"domain": 0, "prio": 4, "stack_size": 8}),
    "remote_rpc_control_unsigned_module": (8, {"domain": 0, "enable": 4}),
    "remote_rpc_process_exception": (4, {"domain": 0}),
    "remote_process_type": (8, {"domain": 0, "process_type": 4}),
    "remote_rpc_reserve_new_session": (
        40,
        {
            "domain_name": 0,
            "domain_name_len": 8,
            "session_name": 16,
            "session_name_len": 24,
            "effective_domain_id": 28,
            "session_id": 32,
        },
    ),
    "remote_rpc_effective_domain_id": (
        24,
        {"domain_name": 0, "domain_name_len": 8, "session_id": 12, "effective_domain_id": 16},
    ),
    "remote_rpc_get_uri": (
        48,
        {
            "domain_name": 0,
            "domain_name_len": 8,
            "session_id": 12,
            "module_uri": 16,
            "module_uri_len": 24,
            "uri": 32,
            "uri_len": 40,
        },
    ),
    "remote_rpc_control_latency": (8, {"enable": 0, "latency": 4}),
    "remote_dsp_capability": (12, {"domain": 0, "attribute_id": 4, "capability": 8}),
    "dspqueue_buffer": (
        24,
        {"fd": 0, "size": 4, "offset": 8, "flags": 12, "ptr": 16, "address": 16},
    ),
}
NUMBERS = {
    abi.SessionRequest: {
        "THREAD_PARAMS": 1,
        "UNSIGNED_MODULE": 2,
        "PROCESS_EXCEPTION": 9,
        "PROCESS_TYPE": 10,
        "RESERVE_NEW_SESSION": 13,
        "GET_EFFECTIVE_DOMAIN_ID": 14,
        "GET_URI": 15,
    },
    abi.HandleRequest: {"LATENCY": 1, "GET_DSP_INFO": 2},
    abi.Attribute: {
        "DOMAIN_SUPPORT": 0,
        "UNSIGNED_PD_SUPPORT": 1,
        "HVX_SUPPORT_128B": 3,
        "VTCM_PAGE": 4,
        "VTCM_COUNT": 5,
        "ARCH_VER": 6,
        "HMX_SUPPORT_DEPTH": 7,
        "HMX_SUPPORT_SPATIAL": 8,
    },
    abi.MapFlag: {"FD": 2, "FD_DELAYED": 3},
    abi.BufferFlag: {
        "FLUSH_SENDER": 0x10,
        "INVALIDATE_SENDER": 0x20,
        "FLUSH_RECIPIENT": 0x40,
        "INVALIDATE_RECIPIENT": 0x80,
    },
}


@pytest.mark.parametrize("struct", LAYOUTS)
def test_a_struct_has_the_size_and_the_offsets_of_the_header(struct):
    ffi = abi.ffi()
    size, offsets = LAYOUTS[struct]

    assert ffi.sizeof(struct) == size
    assert {name: ffi.offsetof(struct, name) for name in offsets} == offsets


def test_no_struct_is_left_out():
    ffi = abi.ffi()
    typedefs, tags, unions = ffi.list_types()
    structs = {name for name in typedefs if ffi.typeof(name).kind in ("struct", "union")}

    assert structs == set(LAYOUTS)
    assert (tags, unions) == ([], [])


def test_handles_are_64_bits_wide_on_the_way_into_every_call():
    """One runtime declares close() with a 32-bit handle: its closes never reach the DSP."""
    ffi = abi.ffi()
    for name in ("open", "invoke", "close", "control"):
        call = abi.CDEF.partition(f"remote_handle64_{name}(")[2].partition(")")[0]
        assert "remote_handle64" in call
    assert ffi.sizeof("remote_handle64") == 8


def test_every_symbol_that_is_looked_up_is_declared_and_none_is_declared_in_vain():
    declared = {
        line.split("(")[0].split()[-1].lstrip("*")
        for line in abi.CDEF.splitlines()
        if "(" in line and line.startswith(("int ", "void ", "size_t ", "uint64_t "))
    }

    assert declared == {*abi.SYMBOLS, *abi.OPTIONAL, "ioctl"}  # ioctl belongs to libc
    assert not set(abi.SYMBOLS) & set(abi.OPTIONAL)


@pytest.mark.parametrize("numbers", NUMBERS, ids=lambda numbers: numbers.__name__)
def test_numbers_are_the_headers(numbers):
    assert {number.name: number.value for number in numbers} == NUMBERS[numbers]


def test_the_request_that_crashes_the_library_is_not_there():
    """FASTRPC_SESSION_CLOSE (7) with a handle open is a segmentation fault in the library."""
    assert 7 not in list(abi.SessionRequest)


def test_importing_the_backend_parses_and_opens_nothing():
    code = (
        "import cffi; cffi.FFI.cdef = None; import npurt.hexagon.fastrpc.abi; "
        "assert 'cdsprpc' not in open('/proc/self/maps').read()"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
