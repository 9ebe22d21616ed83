"""Fixtures: a simulator separate from the one that npurt's tests load, and skels to run on it."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.sim_fastrpc.rpc import Rpc
from tools import build
from tools.build import hexagon, zig

HERE = Path(__file__).parent
SKELS = HERE / "skels"


def foreign_skel(source, out):
    """Compile a skel in the linker's own layout, without npurt's functions for the compiler.

    As many objects that vendors ship, it has more segments than npurt's skels, thread-local
    variables, and calls of functions that the compiler chooses.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = hexagon.job(source, "v68", (), (SKELS,))
        made = zig.objects([zig.Job(source, (*job.flags, "-Os"))], Path(folder))
        zig.zig("ld.lld", "-shared", "--hash-style=sysv", "-z", "max-page-size=4096",
                      "-o", out, *made)  # fmt: skip


@pytest.fixture(scope="session")
def simulator(tmp_path_factory):
    """Build the library and copy it, with its shell in the same folder.

    The copy is not called libcdsprpc, because npurt warns of two such libraries in a process.
    """
    made = build.make(build.PACKAGE, build.host(), ("fastrpc", "shell"))
    folder = tmp_path_factory.mktemp("simulator")
    for path in made:
        shutil.copy(path, folder / path.name.replace("libcdsprpc_sim", "librpc_under_test"))
    return folder / "librpc_under_test.so"


@pytest.fixture(scope="session")
def skels(tmp_path_factory):
    """Compile the skels for v68, and return their folder."""
    folder = tmp_path_factory.mktemp("skels")
    for source in SKELS.glob("*.c"):
        out = folder / f"lib{source.stem}_skel.so"
        if source.stem == "thread_local":
            foreign_skel(source, out)
        else:
            build.compile_skel([source], "v68", out, includes=[SKELS])
    return folder


@pytest.fixture(scope="session")
def loaded(simulator):
    return Rpc(simulator)


@pytest.fixture
def rpc(loaded, skels, monkeypatch):
    """Return the library in its initial state, with unsigned PDs; check that no process remains."""
    monkeypatch.setenv("DSP_LIBRARY_PATH", str(skels))
    loaded.control("reset")
    for domain in (3, 11, 19, 27):
        assert loaded.ask_unsigned(domain) == 0, "the test before this one left a session open"
    yield loaded
    for domain in (3, 11, 19, 27):
        loaded.close_session(domain)  # a session whose skels did not open
    left = [domain for domain in (3, 11, 19, 27) if loaded.process(domain) > 0]
    assert left == [], "the test left sessions open"


@pytest.fixture
def probe(rpc):
    """Return an open handle of the probe skel."""
    handle = rpc.opened("probe")
    yield handle
    rpc.close(handle)
