"""Fixtures: a fake FastRPC library, the simulator, and devices and sessions on the simulator."""

import gc

import pytest

from npurt.hexagon.device.device import HexagonDevice
from npurt.hexagon.fastrpc import control
from npurt.hexagon.session import skel
from tests.hexagon.dsp import NBYTES, Dsp, simulated
from tests.hexagon.fake import Fake, compile_fake
from tests.hexagon.simulator import connection, tell


@pytest.fixture(scope="session")
def compiled_fake(tmp_path_factory):
    return Fake(compile_fake(tmp_path_factory.mktemp("fake")))


@pytest.fixture
def fake(compiled_fake, tmp_path, monkeypatch):
    """The fake library without configured faults, and a skel for it to load."""
    gc.collect()  # free memory of earlier tests before counting
    compiled_fake.reset()
    control.session_pool(compiled_fake.library).__init__(compiled_fake.library)
    (tmp_path / "libnpurt_skel_v68.so").write_bytes(b"not looked at")
    monkeypatch.setattr(skel, "FOLDER", tmp_path)
    yield compiled_fake
    compiled_fake.reset()


@pytest.fixture
def simulator(monkeypatch, tmp_path):
    """The simulator, a v68 without faults, on a host with caches, and nothing remembered of it."""
    monkeypatch.setenv("NPURT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NPURT_SIM_FASTRPC", raising=False)
    tell("reset coherent=0")
    yield
    tell("reset")


@pytest.fixture(scope="module")
def shared():
    """A device for tests that leave it as it was."""
    tell("reset")
    with HexagonDevice("hexagon:test", connection()) as device:
        yield device


@pytest.fixture
def fresh(simulator):
    """A device that no other test uses."""
    with HexagonDevice("hexagon:test", connection()) as device:
        yield device


@pytest.fixture(scope="module")
def dsp():
    """A session on a v68 with four threads and VTCM, where missing cache maintenance shows."""
    with simulated("shadow=1 coherent=0") as session:
        yield Dsp(session, NBYTES)


@pytest.fixture(autouse=True)
def empty(request):
    """Reset the block, so that the next allocation starts at its front."""
    if "dsp" in request.fixturenames:
        request.getfixturevalue("dsp").used = 0
