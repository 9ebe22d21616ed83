"""Test bundles: included data, excluded data, and the refusal of unsafe bundles."""

import gzip
import io
import json
import os
import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from npurt.doctor import anonymous, bundle
from npurt.doctor.anonymous import anonymised
from npurt.errors import NpurtError

EVIDENCE = {
    "machine": "aarch64",
    "text /etc/os-release": "ID=debian\nNAME=é",
    "names /dev/dma_heap": ["system"],
    "node /dev/x": {"mode": "crw", "owner": "root", "group": "x", "read": True, "write": False},
    "probe hexagon": {"steps": {"library": {"path": "/home/jane/lib.so"}}, "ended": ""},
}


def write(path, evidence=EVIDENCE, report="report", names=None):
    bundle.write(path, evidence, report, names or {})
    return path


# --- writing and reading -------------------------------------------------------------------------


def test_evidence_comes_back(tmp_path):
    evidence = EVIDENCE | {"probe hexagon": {"steps": {}}}

    assert bundle.read(write(tmp_path / "a.tar.gz", evidence)) == evidence


def test_a_bundle_is_text_that_any_tar_can_show(tmp_path):
    path = write(tmp_path / "a.tar.gz", report="what was printed")

    with tarfile.open(path) as tar:
        texts = {m.name: tar.extractfile(m).read().decode() for m in tar}
        owners = {(m.uid, m.uname, m.mtime) for m in tar.getmembers()}

    assert list(texts) == [
        f"npurt-doctor/{n}" for n in ("README.txt", "report.txt", "evidence.json")
    ]
    assert texts["npurt-doctor/report.txt"] == "what was printed"
    assert "npurt doctor --from" in texts["npurt-doctor/README.txt"]
    assert owners == {(0, "", 0)}  # no owner, no time


def test_what_is_no_text_does_not_keep_a_bundle_from_being_written(tmp_path):
    """File names that are not UTF-8 contain lone surrogates in Python."""
    evidence = {"names /dev": ["caf\udce9"]}

    path = write(tmp_path / "a.tar.gz", evidence, report="caf\udce9")

    assert bundle.read(path) == evidence
    with tarfile.open(path) as tar:
        assert tar.extractfile("npurt-doctor/report.txt").read() == b"caf?"


def test_a_bundle_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tar.gz")
    before = path.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(NpurtError, match=r"cannot write .*No space left"):
        write(path, {"machine": "other"})

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_where_it_cannot_be_written_it_says_so(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(NpurtError, match="cannot write"):
        write(tmp_path / "nowhere/a.tar.gz")
    with pytest.raises(NpurtError, match="cannot write"):
        write(tmp_path / "file/a.tar.gz")


# --- names of people and machines ----------------------------------------------------------------

SECRETS = [
    "3c:7c:3f:aa:bb:cc",
    "3C-7C-3F-AA-BB-CC",
    "192.168.1.77",
    "fe80::3e7c:3fff:feaa:bbcc",
    "2001:db8:0:1:2:3:4:5",
    "0f3b5a1c-92d4-4f6e-8a7b-1c2d3e4f5a6b",
    "jane.doe@example.org",
    "356938035643809",
]
PLACED = [
    "serial number: {}", "androidboot.serialno={}", "Serial: {}", "serial={}", "testsig-0x{}.so"
]  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "x={} y", "[{}]", "/a/{}/b", '"{}",', "a {}\nb"])
def test_what_is_somebodys_number_is_replaced(secret, around):
    clean = anonymised({"text x": around.format(secret)}, {})

    assert secret not in json.dumps(clean)
    assert clean["text x"] != ""


@pytest.mark.parametrize("around", PLACED)
def test_serial_numbers_are_replaced(around):
    clean = anonymised({"text x": around.format("1a2b3c4d")}, {})

    assert "1a2b3c4d" not in clean["text x"]
    assert "SERIAL" in clean["text x"]


def test_homes_and_names_are_replaced_everywhere_by_the_same():
    names = {"/data/people/jdoe": "/home/USER", "jdoe": "USER", "janes-board": "HOST"}
    evidence = {
        "text /home/bob/x": "/home/bob/lib:/data/people/jdoe/lib",
        "names /data/people/jdoe/lib": ["janes-board.log", "jdoe", "jdoes"],
        "probe p": {"steps": {"a": {"error": "jdoe@janes-board: /Users/eve/x"}}},
    }

    assert anonymised(evidence, names) == {
        "text /home/USER/x": "/home/USER/lib:/home/USER/lib",
        "names /home/USER/lib": ["HOST.log", "USER", "jdoes"],
        "probe p": {"steps": {"a": {"error": "USER@HOST: /Users/USER/x"}}},
    }


@pytest.mark.parametrize(
    "text",
    [
        "CDSP.HT.2.5.c4-00004-KODIAK-1", "6.18.2-current-qcs6490", "7.2.0-rc3-g8d5dbc1b17ad",
        "/lib/firmware/qcom/qcs6490/radxa/dragon-q6a/cdsp.mbn", "a300000.remoteproc: timed out",
        "qcom,fastrpc 3700000.remoteproc:glink-edge.fastrpcglink-apps-dsp.-1.-1: No session",
        "crw-rw---- root:render", "0x80000600", "1.0.5-1", "Package: libfastrpc1\nVersion: 1.0.5-1",
        "DSP_LIBRARY_PATH=/a;/b", "2 MiB of VTCM", "mem: 0x0000000082700000..0x0000000",
        "remoteproc remoteproc3: can't start rproc cdsp: -110",
    ],
)  # fmt: skip
def test_what_a_diagnosis_needs_is_left_alone(text):
    assert anonymised({"text x": text}, {"root": "USER", "a": "USER", "": "HOST"})["text x"] == text


def words_of_a_bundle(path, name):
    """Return the words of a bundle of a machine called *name*."""
    evidence = {f"text /srv/{name}": f"user {name}, host={name}", "names /": [name, f"{name}.d"]}
    write(path, evidence, f"seen by {name}", {name: "STAND"})
    with tarfile.open(path) as tar:
        rest = b"".join(tar.extractfile(m).read() for m in tar.getmembers()[1:])
    return {word.strip('",:/.[]{}=') for word in rest.decode().replace("\\n", " ").split()}


@given(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=3, max_size=12))
@example("names")
@example("root")
def test_no_name_of_this_machine_is_in_a_bundle(tmp_path_factory, name):
    """Exceptions: parts of other words, words of every bundle, and names that identify nobody."""
    path = tmp_path_factory.getbasetemp() / "names.tar.gz"
    anyway = words_of_a_bundle(path, "another1")

    if name not in ("root", "user", "nobody", "localhost"):
        assert name not in words_of_a_bundle(path, name) - anyway


def test_this_machines_names_are_known():
    names = anonymous.secrets()

    assert os.uname().nodename in names
    assert "/home/USER" in names.values()


# --- bundles of strangers ------------------------------------------------------------------------


def archive(path, members, pack=gzip.compress):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content
                tar.addfile(info)
    path.write_bytes(pack(data.getvalue()))
    return path


def told(evidence, form=1):
    return [
        ("npurt-doctor/evidence.json", json.dumps({"format": form, "evidence": evidence}).encode())
    ]


def test_evidence_alone_is_enough(tmp_path):
    path = archive(tmp_path / "a", told({"machine": "x"}))

    assert bundle.read(path) == {"machine": "x"}


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([], "it has no evidence.json"),
        ([("npurt-doctor/README.txt", b"")], "it has no evidence.json"),
        ([("../evidence.json", b"{}")], r"nothing is known of '\.\./evidence\.json'"),
        ([("/etc/passwd", b"x")], "nothing is known of '/etc/passwd'"),
        ([("npurt-doctor/../evidence.json", b"{}")], "nothing is known of"),
        ([("evidence.json", b"{}")], "nothing is known of 'evidence.json'"),
        ([("npurt-doctor/other", b"")], "nothing is known of"),
        ([("npurt-doctor/evidence.json", (tarfile.SYMTYPE, "/etc/passwd"))], "nothing is known of"),
        ([("npurt-doctor/evidence.json", (tarfile.LNKTYPE, "README.txt"))], "nothing is known of"),
        ([("npurt-doctor/evidence.json", (tarfile.CHRTYPE, ""))], "nothing is known of"),
        ([("npurt-doctor/evidence.json", b"{")], "evidence.json is damaged"),
        ([("npurt-doctor/evidence.json", b"\xff")], "evidence.json is damaged"),
        ([("npurt-doctor/evidence.json", b"[" * 100_000)], "evidence.json is damaged"),
        ([("npurt-doctor/evidence.json", b"[]")], "not of format 1"),
        (told({}, 2), "not of format 1"),
        (told([]), "in its evidence, it is no object"),
        (told({"shell rm -rf /": ""}), "nothing is known of 'shell rm"),
        (told({"text /a": {"x": 1}}), "is answered by"),
    ],
)
def test_an_archive_of_something_else_is_refused(members, reason, tmp_path):
    path = archive(tmp_path / "a", members)

    with pytest.raises(NpurtError, match=reason) as caught:
        bundle.read(path)
    assert "npurt doctor --bundle" in caught.value.remedy


def test_what_is_no_bundle_is_refused(tmp_path):
    path = tmp_path / "a"
    for data, reason in (
        (b"", "its end is missing"),
        (b"plain text", "not packed with gzip"),
        (gzip.compress(b"no tar at all" * 100), "archive is damaged|no evidence.json"),
        (os.urandom(100), "not packed with gzip"),
    ):
        path.write_bytes(data)
        with pytest.raises(NpurtError, match=reason):
            bundle.read(path)
    with pytest.raises(NpurtError, match="cannot read"):
        bundle.read(tmp_path)
    with pytest.raises(NpurtError, match="cannot read"):
        bundle.read(tmp_path / "nothing")


def test_a_bomb_is_refused_without_unpacking_it(tmp_path):
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(bytes(64 << 20), 9))

    with pytest.raises(NpurtError, match="unpacks to more than 16777216 bytes"):
        bundle.read(path)


def test_a_file_that_is_too_large_is_refused(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(5 << 20)

    with pytest.raises(NpurtError, match="more than 4194304 bytes"):
        bundle.read(path)


@given(st.integers(0, 10_000))
def test_a_bundle_that_was_cut_short_is_refused(tmp_path_factory, length):
    path = write(tmp_path_factory.getbasetemp() / "cut.tar.gz")
    whole = path.read_bytes()
    path.write_bytes(whole[: length % len(whole)])

    with pytest.raises(NpurtError, match="no bundle that can be read"):
        bundle.read(path)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_bundle_that_was_damaged_is_refused_or_still_evidence(tmp_path_factory, at, change):
    path = write(tmp_path_factory.getbasetemp() / "damaged.tar.gz")
    data = bytearray(gzip.decompress(path.read_bytes()))
    data[at % len(data)] ^= change
    path.write_bytes(gzip.compress(bytes(data)))

    try:
        evidence = bundle.read(path)
    except NpurtError as error:
        evidence = {"refused": error.what}
    assert isinstance(evidence, dict)
