"""Test examples/own_skel: a user's skel is compiled, loaded by the simulated DSP, and called."""

import gc
import shutil
import sys
import threading
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt import cli
from npurt.errors import (
    DeviceLost,
    DeviceNotFound,
    DeviceTimeout,
    DriverError,
    NpurtError,
    SettingError,
)
from npurt.hexagon import idl
from npurt.hexagon.doctor import elf
from npurt.hexagon.fastrpc import lib
from npurt.hexagon.fastrpc.control import session_pool
from npurt.hexagon.fastrpc.handle import Handle, HandleState
from npurt.hexagon.session import Session
from npurt.hexagon.session.own_skel import OwnSkel, build
from tests.hexagon.simulator import wait_until
from tests.limits import HANG_SECONDS
from tools.build import zig

EXAMPLE = Path(__file__).parents[2] / "examples/own_skel"
INTERFACE = idl.load(EXAMPLE / "vectors.idl")
SOURCE = EXAMPLE / "vectors.c"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build([SOURCE], INTERFACE, tmp_path_factory.mktemp("own") / "libvectors_skel.so")


@pytest.fixture(scope="module")
def vectors(built):
    library = lib.load([lib.simulator()])
    with OwnSkel(library, built, INTERFACE, deadline=HANG_SECONDS) as opened:
        yield opened


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 300), seed=st.integers(0, 2**32 - 1))
def test_its_results_are_those_of_numpy(vectors, n, seed):
    a, b = np.random.default_rng(seed).integers(-(1 << 15), 1 << 15, (2, n)).astype(np.int16)

    (total,) = vectors.call("add", a, b, n)

    expected = np.clip(a.astype(np.int64) + b, -(1 << 15), (1 << 15) - 1)
    np.testing.assert_array_equal(np.asarray(total, np.int16), expected)


def test_what_a_method_returns_is_the_error(vectors):
    with pytest.raises(DriverError) as caught:
        vectors.call("add", np.zeros(4, np.int16), np.zeros(5, np.int16), 4)

    assert caught.value.code == 0x0E  # BAD_PARAMETER of vectors.c


def test_a_session_is_free_again_when_it_is_closed(built):
    library = lib.load([lib.simulator()])
    for _ in range(6):  # more often than the number of sessions
        opened = OwnSkel(library, built, INTERFACE, deadline=HANG_SECONDS)
        opened.close()
        opened.close()
    with pytest.raises(NpurtError):
        opened.call("add", np.zeros(4, np.int16), np.zeros(4, np.int16), 4)


def test_a_skel_that_cannot_be_opened_leaves_the_session_free(tmp_path):
    library = lib.load([lib.simulator()])
    file = tmp_path / "libvectors_skel.so"
    file.write_bytes(b"no skel")
    for _ in range(6):
        with pytest.raises(DriverError):
            OwnSkel(library, file, INTERFACE, deadline=HANG_SECONDS)


def test_an_opening_that_is_late_keeps_the_session_until_it_is_closed(built, monkeypatch):
    library = lib.load([lib.simulator()])
    pool, go_on, opened, really_open = session_pool(library), Event(), [], Handle.open

    def slow(handle):
        opened.append(handle)
        assert go_on.wait(HANG_SECONDS)
        really_open(handle)

    before = pool.in_use()
    monkeypatch.setattr(Handle, "open", slow)
    with pytest.raises(DeviceTimeout):
        OwnSkel(library, built, INTERFACE, deadline=0.05)
    assert len(pool.in_use() - before) == 1

    go_on.set()
    wait_until(lambda: pool.in_use() == before)
    assert [handle.state for handle in opened] == [HandleState.CLOSED]


def test_after_a_late_call_it_is_dead(built, monkeypatch):
    library = lib.load([lib.simulator()])
    pool, go_on, really_invoke = session_pool(library), Event(), Handle.invoke

    def slow(handle, invocation):
        assert go_on.wait(HANG_SECONDS)
        really_invoke(handle, invocation)

    before = pool.in_use()
    arguments = np.ones(4, np.int16), np.ones(4, np.int16), 4
    with OwnSkel(library, built, INTERFACE, deadline=HANG_SECONDS) as opened:
        opened.call("add", *arguments)
        monkeypatch.setattr(Handle, "invoke", slow)
        monkeypatch.setattr(opened, "_deadline", 0.05)
        with pytest.raises(DeviceTimeout):
            opened.call("add", *arguments)
        go_on.set()
        monkeypatch.setattr(opened, "_deadline", HANG_SECONDS)
        wait_until(lambda: not opened._owned.caller.stuck)
        with pytest.raises(DeviceLost):
            opened.call("add", *arguments)
    wait_until(lambda: pool.in_use() == before)


def test_one_that_is_dropped_is_closed(built):
    library = lib.load([lib.simulator()])
    before, threads = session_pool(library).in_use(), set(threading.enumerate())
    opened = OwnSkel(library, built, INTERFACE, deadline=HANG_SECONDS)
    assert session_pool(library).in_use() != before
    (thread,) = set(threading.enumerate()) - threads

    del opened
    gc.collect()

    assert session_pool(library).in_use() == before
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "open_on",
    [
        lambda built, library: OwnSkel(library, built, INTERFACE, domain="adsp"),
        lambda built, library: Session.open(library, "adsp", deadline=HANG_SECONDS),
    ],
    ids=["own skel", "session"],
)
def test_a_dsp_that_does_not_exist_is_named(built, open_on):
    library = lib.load([lib.simulator()])

    with pytest.raises(DeviceNotFound, match="no DSP 'adsp'") as caught:
        open_on(built, library)

    assert "cdsp" in caught.value.remedy


def test_a_skel_that_is_missing_is_named(tmp_path):
    missing = tmp_path / "libvectors_skel.so"

    with pytest.raises(NpurtError, match=f"cannot read {missing}: No such file") as caught:
        OwnSkel(lib.load([lib.simulator()]), missing, INTERFACE)

    assert "space" not in caught.value.remedy


def test_a_file_of_another_name_is_refused(built, tmp_path):
    other = shutil.copy(built, tmp_path / "other.so")

    with pytest.raises(NpurtError, match=r"other\.so is not libvectors_skel\.so"):
        OwnSkel(lib.load([lib.simulator()]), other, INTERFACE)


def test_the_command_builds_for_the_version_that_is_asked_for(tmp_path, capsys):
    out = tmp_path / "libvectors_skel.so"
    arguments = [str(SOURCE), "--idl", str(EXAMPLE / "vectors.idl"), "-o", str(out)]

    assert cli.main(["skel", "build", *arguments, "--arch", "v73"]) == 0

    assert "should load" in capsys.readouterr().out
    skel = elf.read(out.read_bytes())
    assert (skel.arch, skel.exports) == (73, ("vectors_skel_handle_invoke",))


def test_a_source_that_is_refused_leaves_the_old_skel(tmp_path):
    out = tmp_path / "libvectors_skel.so"
    out.write_bytes(b"old")
    source = tmp_path / "wrong.c"
    source.write_text("int x\n")

    with pytest.raises(NpurtError, match="expected ';'"):
        build([source], INTERFACE, out)

    assert out.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, source.name]


@pytest.mark.parametrize("out", ["folder", "file/libvectors_skel.so", "n" * 256])
def test_a_skel_that_cannot_be_written_is_named(tmp_path, out):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(NpurtError, match=f"cannot write {tmp_path / out}: ") as caught:
        build([SOURCE], INTERFACE, tmp_path / out)

    assert "another --out" in caught.value.remedy
    assert sorted(tmp_path.rglob("*")) == before


def test_without_the_compiler_the_remedy_is_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(zig, "find_spec", lambda name: None)

    with pytest.raises(NpurtError) as caught:
        build([SOURCE], INTERFACE, tmp_path / "libvectors_skel.so")

    assert "no compiler" in caught.value.what
    assert "ziglang" in caught.value.remedy


def test_without_the_build_code_the_remedy_is_a_checkout(tmp_path, monkeypatch):
    monkeypatch.delattr("tools.build.hexagon")
    monkeypatch.setitem(sys.modules, "tools.build.hexagon", None)

    with pytest.raises(NpurtError, match="no build code") as caught:
        build([SOURCE], INTERFACE, tmp_path / "libvectors_skel.so")

    assert "checkout" in caught.value.remedy


@pytest.mark.parametrize(
    "arguments", [["build", "x.c"], ["verify", "a", "b"], ["info", "a", "-o", "b"]]
)
def test_a_request_that_makes_no_sense_is_refused(arguments, monkeypatch):
    monkeypatch.setenv("NPURT_DEBUG", "1")  # raises errors

    with pytest.raises(SettingError):
        cli.main(["skel", *arguments])
