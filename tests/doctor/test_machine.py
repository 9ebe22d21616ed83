"""Test the data read from a machine, and the results when a machine hides the data."""

import lzma
import os

import pytest

from npurt.doctor.machine import MAX_FOUND, MAX_TEXT, Machine
from npurt.doctor.system import Node


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def put(root, path, data):
    here = root / path
    here.parent.mkdir(parents=True, exist_ok=True)
    here.write_bytes(data)
    return here


def test_text_is_stripped_and_its_nuls_are_line_ends(machine, tmp_path):
    put(tmp_path, "a/model", b"Radxa Dragon Q6A\0")
    put(tmp_path, "a/compatible", b"radxa,dragon-q6a\0qcom,qcm6490\0\n")

    assert machine.text("/a/model") == "Radxa Dragon Q6A"
    assert machine.text("/a/compatible") == "radxa,dragon-q6a\nqcom,qcm6490"


def test_text_is_of_any_bytes_and_no_longer_than_the_limit(machine, tmp_path):
    put(tmp_path, "bad", b"\xff\xfe")
    put(tmp_path, "long", b"x" * (MAX_TEXT + 5))

    assert machine.text("/bad") == "\ufffd\ufffd"
    assert len(machine.text("/long")) == MAX_TEXT


def test_what_is_not_there_is_no_error(machine, tmp_path):
    put(tmp_path, "file", b"")

    for path in ("/nothing", "/file/below", "/"):
        assert machine.text(path) is None
    assert machine.names("/nothing") == machine.names("/file") == []
    assert machine.node("/nothing") is None
    assert machine.matches("/nothing", "x") is None
    assert machine.matches("/nothing.xz", "x") is None
    assert machine.runs("anything") is False
    assert machine.log("x") == []
    assert machine.probe("x") == {}


def test_a_node_is_what_ls_shows_and_what_this_user_may(tmp_path):
    put(tmp_path, "dev/x", b"").chmod(0o640)
    asked = []

    def access(path, how):
        asked.append((path, how))
        return how == os.R_OK

    node = Machine(tmp_path, access=access).node("/dev/x")

    assert node == Node("-rw-r-----", node.owner, node.group, True, False)
    assert asked == [(tmp_path / "dev/x", os.R_OK), (tmp_path / "dev/x", os.W_OK)]


def test_people_have_no_names(tmp_path):
    """User IDs from 1000 on belong to people, whose names a bundle does not contain."""
    here = put(tmp_path, "x", b"")
    if os.getuid() == 0:
        os.chown(here, 1000, 31337)
    person = here.stat().st_uid >= 1000  # also if a person runs this test

    node = Machine(tmp_path).node("/x")

    assert (node.owner == "user") == person
    assert (node.group == "user") == (here.stat().st_gid >= 1000)


@pytest.mark.parametrize("name", ["a.mbn", "a.mbn.xz"])
def test_matches_are_distinct_and_sorted(name, machine, tmp_path):
    data = b"\0B.2\0..A.1\0B.2" + bytes(100_000) + b"C.3"
    put(tmp_path, name, lzma.compress(data) if name.endswith("xz") else data)

    assert machine.matches(f"/{name}", r"[A-Z]\.\d") == ["A.1", "B.2", "C.3"]


def test_matches_of_an_empty_file_are_none_and_there_is_a_limit(machine, tmp_path):
    put(tmp_path, "empty", b"")
    put(tmp_path, "many", b" ".join(b"%d" % i for i in range(1000)))

    assert machine.matches("/empty", "x") == []
    assert len(machine.matches("/many", r"\d+")) == MAX_FOUND


def test_zstd_is_unpacked_by_the_program_or_not_at_all(tmp_path, monkeypatch):
    put(tmp_path, "a.zst", b"CDSP.1")
    fake = put(tmp_path, "bin/zstd", b'#!/bin/sh\n[ "$1" = -dcq ] && cat "$2"\n')
    fake.chmod(0o755)
    machine = Machine(tmp_path)

    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert machine.matches("/a.zst", "CDSP") is None
    monkeypatch.setenv("PATH", f"{fake.parent}:/bin:/usr/bin")
    assert machine.matches("/a.zst", "CDSP") == ["CDSP"]
    fake.write_text("#!/bin/sh\nexit 1\n")
    assert machine.matches("/a.zst", "CDSP") is None


def test_processes_are_found_by_name(machine, tmp_path):
    put(tmp_path, "proc/7/comm", b"cdsprpcd\n")
    put(tmp_path, "proc/self/comm", b"python\n")

    assert machine.runs("cdsprpcd")
    assert not machine.runs("python")


def test_the_kernels_log_is_its_messages(machine, tmp_path):
    log = b"6,1,5,-;remoteproc remoteproc0: up\n SUBSYSTEM=x\n4,2,6,-;wifi; down\n;\n\n"
    put(tmp_path, "dev/kmsg", log)

    assert machine.log("remoteproc|down") == ["remoteproc remoteproc0: up", "wifi; down"]
    assert machine.log("SUBSYSTEM") == []


def test_this_machine_can_be_asked():
    machine = Machine()

    assert machine.machine() == os.uname().machine
    assert machine.text("/proc/sys/kernel/osrelease") == os.uname().release
    assert "self" in machine.names("/proc")
    assert machine.node("/dev/null").mode.startswith("c")
    assert machine.runs(machine.text("/proc/self/comm"))
    assert isinstance(machine.log("."), list)


def test_a_reader_gets_the_bytes_of_a_file_and_only_known_readers_answer(tmp_path):
    put(tmp_path, "a", b"abc")
    put(tmp_path, "b.xz", lzma.compress(b"packed"))
    machine = Machine(tmp_path, readers={"length": lambda data: {"bytes": len(data)}})

    assert machine.read("length", "/a") == {"bytes": 3}
    assert machine.read("length", "/b.xz") == {"bytes": 6}
    assert machine.read("length", "/none") is None
    assert machine.read("other", "/a") is None
