"""Test files that the DSP loads or refuses: the code, and the reason in the message."""

import os
import signal
import struct
import threading

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from npurt import build
from tests.sim_fastrpc.conftest import SKELS
from tests.sim_fastrpc.rpc import HEAP, INVERT, MACHINE, PRINT, STATUS, words

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
