"""Tests of the cache of DSP measurements: its keys, and that entries are whole or absent."""

import json
import os
import pwd
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npurt.hexagon.connect import measurements, probe
from npurt.hexagon.connect.connection import Connection
from npurt.settings import cache_folder


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NPURT_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_what_is_remembered_is_recalled_by_its_identity_alone(folder):
    measurements.remember("a board", "capacity", 5)
    measurements.remember("a board", "dspqueue", False)
    measurements.remember("another", "capacity", 7)

    assert measurements.recall("a board", "capacity") == 5
    assert measurements.recall("a board", "dspqueue") is False
    assert measurements.recall("another", "capacity") == 7
    assert measurements.recall("another", "dspqueue") is None
    assert measurements.recall("a third", "capacity") is None
    assert [path.name for path in folder.iterdir()] == ["hexagon.json"]


DAMAGE = {
    "nothing": "",
    "cut off": "{",
    "a list": "[1]",
    "a number": "3",
    "no object": '{"a board": 3}',
    "no text": "\udcff",
    "deep": "[" * 100_000,
    "rather deep": '{"a board": {"capacity": %s}}' % ("[" * 900 + "]" * 900),
    "many digits": '{"a board": {"capacity": %s}}' % ("9" * 5000),
    "not a value": '{"a board": {"capacity": {"a": 1}}}',
    "large": '{"a board": {"capacity": 7}, "": {"": "%s"}}' % ("x" * measurements.MAX_BYTES),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_says_nothing_and_is_replaced(folder, damage):
    folder.mkdir()
    (folder / "hexagon.json").write_bytes(damage.encode(errors="surrogateescape"))

    assert measurements.recall("a board", "capacity") is None
    measurements.remember("a board", "capacity", 5)
    assert measurements.recall("a board", "capacity") == 5


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "b"]), inner),
    ).map(json.dumps)
)
def test_whatever_is_in_the_file_it_can_be_asked_and_added_to(text):
    file = cache_folder() / "hexagon.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)

    measurements.recall("a", "b")
    measurements.remember("a", "b", 5)
    assert measurements.recall("a", "b") == 5


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_says_nothing_and_stays(folder, make):
    folder.mkdir()
    make(folder / "hexagon.json")

    assert measurements.recall("a board", "capacity") is None
    measurements.remember("a board", "capacity", 5)
    assert measurements.recall("a board", "capacity") is None
    assert not (folder / "hexagon.json").is_file()


def test_a_user_without_a_home_has_nothing_kept(monkeypatch):
    for name in ("NPURT_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # a number without a name

    measurements.remember("a board", "capacity", 5)
    assert measurements.recall("a board", "capacity") is None


@pytest.mark.parametrize("known", [True, -1, "much", None, 1.5])
def test_a_capacity_that_is_none_is_measured_again(monkeypatch, fake, known):
    monkeypatch.setattr(probe, "_measure", lambda connection: (77, False))
    connection = Connection(str(fake.path))
    measurements.remember(measurements.identity(fake.library, "cdsp"), "capacity", known)

    assert probe.capacity(connection) == 77
    assert measurements.recall(measurements.identity(fake.library, "cdsp"), "capacity") == 77


@pytest.mark.parametrize(
    ("meminfo", "nbytes"),
    [("MemTotal: 9 kB\nMemAvailable:   5 kB\n", 5120), ("MemTotal: 9 kB\n", 0), (None, 0)],
)
def test_a_system_that_does_not_say_how_much_memory_it_has_has_none(tmp_path, meminfo, nbytes):
    if meminfo:
        (tmp_path / "meminfo").write_text(meminfo)

    assert probe.available_memory(tmp_path / "meminfo") == nbytes


def test_a_folder_that_cannot_be_written_is_no_error(folder):
    folder.write_text("a file where the folder should be")

    measurements.remember("a board", "capacity", 5)
    assert measurements.recall("a board", "capacity") is None


def test_a_value_that_cannot_be_kept_leaves_the_old_file_and_no_other(folder):
    measurements.remember("a board", "capacity", 5)

    with pytest.raises(TypeError):
        measurements.remember("a board", "capacity", object())
    assert measurements.recall("a board", "capacity") == 5
    assert [path.name for path in folder.iterdir()] == ["hexagon.json"]


def test_readers_beside_a_writer_see_whole_files(folder):
    measurements.remember("a board", "text", "x" * 100)
    stop = threading.Event()
    seen = set()

    def read():
        while not stop.is_set():
            seen.add(len(json.loads((folder / "hexagon.json").read_text())["a board"]["text"]))

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(100):
        measurements.remember("a board", "text", "x" * (100 + 100000 * (n % 2)))
    stop.set()
    reader.join()
    assert seen <= {100, 100100}


def test_the_folder_is_the_setting_or_xdgs_or_the_homes(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "kept"
    monkeypatch.delenv("NPURT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert str(cache_folder()) == "/x/npurt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert str(cache_folder()) == "/home/me/.cache/npurt"


# --- Identity -----------------------------------------------------------------------------------


def board(root, *, model="Radxa Dragon Q6A\0", firmware=b"1", domain="cdsp"):
    """Make the files of a board below *root*, as Linux shows them."""
    tree = root / "sys/firmware/devicetree/base"
    tree.mkdir(parents=True)
    (tree / "model").write_text(model)
    for i, name in enumerate(("adsp", domain)):
        processor = root / f"sys/class/remoteproc/remoteproc{i}"
        processor.mkdir(parents=True)
        (processor / "name").write_text(f"{name}\n")
        (processor / "firmware").write_text(f"qcom/qcs6490/{name}.mbn\n")
        blob = root / f"lib/firmware/qcom/qcs6490/{name}.mbn"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(firmware)
    return root


def test_board_firmware_and_library_make_the_identity(fake, tmp_path):
    first = measurements.identity(fake.library, "cdsp", board(tmp_path / "1"))

    assert "Radxa Dragon Q6A | qcom/qcs6490/cdsp.mbn " in first
    assert "\0" not in first
    assert str(fake.path) in first
    assert first == measurements.identity(fake.library, "cdsp", tmp_path / "1")
    others = {
        measurements.identity(fake.library, "cdsp", board(tmp_path / "2", model="Rubik Pi 3\0")),
        measurements.identity(fake.library, "cdsp", board(tmp_path / "3", firmware=b"22")),
        measurements.identity(fake.library, "cdsp1", tmp_path / "1"),
        measurements.identity(fake.library, "cdsp", tmp_path / "nothing here"),
        first,
    }
    assert len(others) == 5
