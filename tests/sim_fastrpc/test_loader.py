"""Test files that the DSP loads or refuses: the code, and the reason in the message."""

import ctypes as c
import functools
import operator
import os
import signal
import struct
import threading
import zlib

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from npurt.hexagon.doctor import elf, shell_names
from npurt.hexagon.session import skel
from tests.sim_fastrpc.conftest import SKELS, foreign_skel
from tests.sim_fastrpc.rpc import HEAP, INVERT, MACHINE, PRINT, STATUS, words
from tools import build

UNABLE_TO_LOAD = 0x80000406
FLAGS, MACHINE_FIELD, TYPE = 36, 18, 16  # offsets in the header of a 32-bit ELF file


@pytest.fixture
def changed(rpc, skels, tmp_path, monkeypatch):
    """Return a function that opens the probe after a change to its bytes."""
    original = (skels / "libprobe_skel.so").read_bytes()
    monkeypatch.setenv("DSP_LIBRARY_PATH", str(tmp_path))

    def open_changed(data):
        (tmp_path / "libprobe_skel.so").write_bytes(data)
        return rpc.open("probe")

    open_changed.original = original
    return open_changed


def patched(data, offset, layout, value):
    size = struct.calcsize(layout)
    return data[:offset] + struct.pack(layout, value) + data[offset + size :]


@pytest.mark.parametrize("arch", ["v68", "v69", "v73", "v75", "v79", "v81"])
def test_a_skel_runs_on_its_arch_and_newer_ones(rpc, arch, tmp_path, monkeypatch):
    build.compile_skel([SKELS / "probe.c"], arch, tmp_path / "libprobe_skel.so", includes=[SKELS])
    monkeypatch.setenv("DSP_LIBRARY_PATH", str(tmp_path))
    codes = []
    for machine in ("v66", "v68", "v69", "v73", "v75", "v79", "v81"):
        rpc.control(f"arch={machine}")
        code, handle = rpc.open("probe")
        codes.append((machine >= arch, code))
        if code == 0:
            assert rpc.call(handle, INVERT, b"ab", 2) == (0, bytes([255 - 97, 255 - 98]))
            rpc.close(handle)
        else:
            assert "newer Hexagon" in rpc.error()
            assert rpc.close_session() == 0  # otherwise the session that was started for it remains

    assert all(code == (0 if fits else UNABLE_TO_LOAD) for fits, code in codes), codes


def test_an_import_that_no_pd_has_keeps_a_skel_from_loading(rpc):
    assert rpc.open("stranger") == (UNABLE_TO_LOAD, 0)
    assert "undefined symbol nobody_has_this" in rpc.error()


def test_a_weak_import_that_no_pd_has_is_null(rpc):
    handle = rpc.opened("weak")
    assert rpc.call(handle, 2)[0] == 0
    rpc.close(handle)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: b"", "too short"),
        (lambda data: b"\x7fELF", "too short"),
        (lambda data: b"#!/bin/sh\n" * 20, "not a 32-bit ELF"),
        (lambda data: patched(data, MACHINE_FIELD, "<H", 62), "not a shared object"),
        (lambda data: patched(data, TYPE, "<H", 2), "not a shared object"),
        (lambda data: patched(data, FLAGS, "<I", 0x73), "newer Hexagon"),
        (lambda data: data[:4096], "cut off"),
    ],
)
def test_what_is_no_skel_does_not_load(rpc, changed, change, reason):
    assert changed(change(changed.original)) == (UNABLE_TO_LOAD, 0)
    assert reason in rpc.error()


def test_damage_to_a_skel_is_refused_or_ends_its_pd_and_nothing_else(rpc, changed):
    """The test sets any byte of the headers and tables to any value."""
    data = changed.original

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
    @given(st.lists(st.tuples(st.integers(0, 0x5000), st.integers(0, 255)), max_size=8))
    @example([])
    @example([(i, 255) for i in range(52, 148)])
    def check(damage):
        spoiled = bytearray(data)
        for offset, value in damage:
            spoiled[offset % len(data)] = value

        hanging = threading.Timer(20, lambda: os.kill(rpc.process(), signal.SIGKILL))
        hanging.start()  # a wild jump may end in a loop

        code, handle = changed(bytes(spoiled))
        if code == 0:
            rpc.call_words(handle, STATUS, 0)
            rpc.close(handle)

        else:
            rpc.close_session()  # a PD that has ended already counts as none

        hanging.cancel()
        hanging.join()
        assert rpc.process() == -1

    check()
    code, handle = changed(data)
    assert code == 0
    rpc.close(handle)


# --- names and forms ------------------------------------------------------------------------------


def signed(value, bits):
    return value - (value >> (bits - 1) << bits)


def truncated(a, b):
    """Return quotient and remainder as C computes them."""
    quotient = abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)
    return quotient, a - b * quotient


def test_every_thread_has_its_own_thread_local_variables(rpc):
    """The literals are sums of the initial values in thread_local.c, by hand."""
    first = 0x11223344 + 0x55667788 + 9 + 40
    handle = rpc.opened("thread_local")

    for _ in range(2):  # the second handle starts with new variables
        code, seen = rpc.call_words(handle, 2, 3, capacity=4)
        rpc.close(handle)
        assert (code, seen) == (0, (first + 3, first + 1 + 5 + 6, first + 3, first + 1 + 5 + 6))
        handle = rpc.opened("thread_local")

    rpc.close(handle)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(values=st.lists(st.integers(0, 2**32 - 1), min_size=8, max_size=8))
@example(values=[2**31, 2**31, 2, 0, 5, 6, 7, 8])
@example(values=[0, 1, 2**32 - 1, 2**32 - 1, 1, 2, 3, 4])
def test_the_shell_has_the_functions_that_compilers_call(rpc, values):
    """Division as in C, and r16 to r27 kept over calls."""
    values[2] |= 1  # no division by 0
    low, wide = values[0], (values[1] << 32 | values[0], values[3] << 32 | values[2])
    results = [divmod(low, values[2]), truncated(signed(low, 32), signed(values[2], 32)),
               divmod(*wide), truncated(signed(wide[0], 64), signed(wide[1], 64))]  # fmt: skip
    narrow = [n % 2**32 for pair in results[:2] for n in pair]
    long = [n >> shift & 2**32 - 1 for pair in results[2:] for n in pair for shift in (0, 32)]
    state = values[:7]
    for i in range(21):
        state[i % 7] = (state[i % 7] * 31 + state[(i + 1) % 7]) % 2**32
    kept = functools.reduce(operator.xor, state)

    handle = rpc.opened("thread_local")
    answer = rpc.call_words(handle, 3, *values, capacity=13)
    rpc.close(handle)

    assert answer == (0, (*narrow, *long, kept))


def test_a_shipped_form_is_read(skels):
    """More segments than npurt's skels have, thread-local variables, and their relocations."""
    read = elf.read((skels / "libthread_local_skel.so").read_bytes())

    assert {"DTPMOD_32", "DTPREL_32"} <= {*read.relocations}
    assert "__hexagon_udivsi3" in read.imports
    assert any(name.startswith("__save_r16_through_") for name in read.imports)
    assert len([s for s in read.segments if s.kind == elf.SegmentType.LOAD]) == 4


NAMES = """
#include "dsp.h"
{declared}
static const void *const names[] = {{ {listed} }};

EXPORT int names_skel_handle_invoke(uint64_t handle, uint32_t scalars, remote_arg *arguments)
{{
    (void) handle;
    uint8_t *out = scalars >> 24 == 2 ? arguments[0].buffer.at : NULL;
    for (unsigned i = 0; out && i < sizeof(names) / sizeof(names[0]); i++) {{
        out[i] = names[i] != NULL;
    }}
    return 0;
}}
"""
NEVER = (  # names that skels of this project once imported or the simulator once offered
    "qurt_sem_up", "qurt_anysignal_init", "qurt_anysignal_destroy", "qurt_anysignal_get",
    "qurt_anysignal_wait", "calloc", "realloc", "free", "memalign", "npurt_sim_packets",
)  # fmt: skip


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Return a folder with a skel that imports every listed name weakly, and the names."""
    asked = (*sorted(shell_names.table()), *NEVER)
    folder = tmp_path_factory.mktemp("names")
    source = folder / "names.c"
    source.write_text(
        NAMES.format(
            declared="\n".join(
                f'extern const char n{i}[] __asm__("{name}") __attribute__((weak));'
                for i, name in enumerate(asked)
            ),
            listed=", ".join(f"n{i}" for i in range(len(asked))),
        )
    )
    foreign_skel(source, folder / "libnames_skel.so")
    return folder, asked


@pytest.mark.parametrize("arch", [68, 69, 73, 75, 79, 81])
def test_a_shell_offers_the_listed_names_and_no_others(rpc, names, arch, monkeypatch):
    folder, asked = names
    monkeypatch.setenv("DSP_LIBRARY_PATH", str(folder))
    rpc.control(f"arch=v{arch}")
    handle = rpc.opened("names")
    code, answer = rpc.call(handle, 2, capacity=len(asked))
    rpc.close(handle)

    offered = {name for name, there in zip(asked, answer, strict=True) if there}
    assert (code, offered) == (0, shell_names.exported(arch))


@pytest.mark.parametrize("name", elf.read(skel.choose(68).read_bytes()).imports)
def test_without_a_name_npurt_does_not_load_unless_the_name_is_optional(rpc, name, monkeypatch):
    """As on a DSP whose shell lacks the name."""
    path = skel.choose(68)
    optional = elf.read(path.read_bytes()).imports[name]
    monkeypatch.setenv("DSP_LIBRARY_PATH", str(path.parent))
    rpc.control(f"without={name}")

    handle = c.c_uint64(0)
    uri = f"{skel.module(path)}&_dom=cdsp".encode()
    code = rpc.remote_handle64_open(uri, c.byref(handle)) & 0xFFFFFFFF

    if optional:
        assert (code, rpc.close(handle.value)) == (0, 0)
    else:
        assert code == UNABLE_TO_LOAD
        assert f"undefined symbol {name}" in rpc.error()
        rpc.close_session()


def test_what_is_not_simulated_ends_the_pd_with_its_name(rpc, tmp_path, monkeypatch):
    source = tmp_path / "caller.c"
    source.write_text(
        '#include "dsp.h"\nint qurt_pipe_create(void);\n'
        "EXPORT int caller_skel_handle_invoke(uint64_t h, uint32_t scalars, remote_arg *a)\n"
        "{ (void) h; (void) a; return scalars >> 24 == 2 ? qurt_pipe_create() : 0; }\n"
    )
    foreign_skel(source, tmp_path / "libcaller_skel.so")
    monkeypatch.setenv("DSP_LIBRARY_PATH", str(tmp_path))
    handle = rpc.opened("caller")

    code, _ = rpc.call(handle, 2)

    assert code == 0x8000040D
    assert "qurt_pipe_create is not simulated" in rpc.error()
    rpc.close(handle)


# --- the checksum -------------------------------------------------------------------------------


def with_checksum(data, *, change=0):
    """Return a file with the section that holds the checksum of its loaded bytes.

    The layout is that of Debian's hexagon-dsp-binaries: the last section header, type 0xd3574956,
    and 16 bytes at the end of the file that begin with "SWIV" and a CRC-32.
    """
    table, sections = struct.unpack_from("<I", data, 32)[0], struct.unpack_from("<H", data, 48)[0]
    headers = data[table : table + 40 * sections]
    place = len(data) + len(headers) + 40  # the table moves to the end of the file, one longer
    row = struct.pack("<10I", 0, 0xD3574956, 0, 0, place, 16, 0, 0, 0, 0)
    data = patched(patched(data, 32, "<I", len(data)), 48, "<H", sections + 1)
    programs = struct.unpack_from("<I", data, 28)[0]
    crc = 0
    for i in range(struct.unpack_from("<H", data, 44)[0]):
        kind, at, _, _, nbytes, memory, _, _ = struct.unpack_from("<8I", data, programs + 32 * i)
        if kind == 1:
            crc = zlib.crc32(data[at : at + nbytes] + bytes(memory - nbytes), crc)
    return data + headers + row + b"SWIV" + struct.pack("<3I", crc ^ change, 0, 0)


def test_a_dsp_that_requires_a_checksum_refuses_a_file_without_a_right_one(rpc, changed):
    rpc.control("checksum=1")
    right = with_checksum(changed.original)

    assert changed(changed.original) == (UNABLE_TO_LOAD, 0)
    assert "section header for CRC segment not found" in rpc.error()
    assert changed(with_checksum(changed.original, change=1)) == (UNABLE_TO_LOAD, 0)
    assert "checksum is wrong" in rpc.error()
    code, handle = changed(right)
    assert (code, rpc.close(handle)) == (0, 0)


def test_a_dsp_without_checksums_loads_a_file_with_one(rpc, changed):
    code, handle = changed(with_checksum(changed.original))

    assert (code, rpc.close(handle)) == (0, 0)


# --- functions of a PD ----------------------------------------------------------------------------


def test_the_services_of_a_pd_answer(rpc):
    rpc.control("arch=v79")
    handle = rpc.opened("probe")
    assert rpc.call_words(handle, MACHINE, capacity=1) == (0, (6 << 8,))  # contexts of 128 bytes
    assert rpc.call_words(handle, HEAP, 64, 0, capacity=1) == (0, (0xA5,))
    rpc.close(handle)


def test_text_is_formatted_as_in_c(rpc, probe):
    wanted = b"-7|   42|ab  |0000BEEF|text|z|-5000000000|3.142|0x10|%"

    for capacity in (200, 10, 1):
        code, answer = rpc.call(probe, PRINT, words(capacity), 208)
        assert code == 0
        assert int.from_bytes(answer[:4], "little") == len(wanted)
        assert answer[4:].split(b"\0")[0] == wanted[: capacity - 1]
    assert f"[2] probe.c:1: printed {len(wanted)} bytes" in rpc.log()
