"""Test that a file is written completely or not at all."""

import multiprocessing
import os
import resource

import pytest

from npurt.base.files import replacing
from tests.limits import HANG_SECONDS

LIMIT = 1 << 16  # largest file of the process, in bytes


def write(path, data):
    with replacing(path) as file:
        file.write(data)


def listed(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_file_is_made_and_replaced_and_nothing_else_is_left(tmp_path):
    write(tmp_path / "a", b"one")
    assert listed(tmp_path) == {"a": b"one"}

    write(tmp_path / "a", b"two")
    assert listed(tmp_path) == {"a": b"two"}


def test_it_has_the_rights_of_any_new_file(tmp_path):
    (tmp_path / "other").touch()
    write(tmp_path / "a", b"")

    assert (tmp_path / "a").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_the_longest_name_fits(tmp_path):
    write(tmp_path / ("n" * 255), b"x")

    assert listed(tmp_path) == {"n" * 255: b"x"}


@pytest.mark.parametrize("there", [{}, {"a": b"before"}])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError])
def test_whatever_is_raised_meanwhile_leaves_what_was_there(tmp_path, there, error):
    for name, data in there.items():
        (tmp_path / name).write_bytes(data)

    def interrupted():
        with replacing(tmp_path / "a") as file:
            file.write(b"half of ")
            raise error

    with pytest.raises(error):
        interrupted()
    assert listed(tmp_path) == there


def too_much(path, answer):
    """Write more than this process may; the error is like that of a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
    try:
        write(path, bytes(2 * LIMIT))
    except OSError as error:
        answer.put(error.strerror)


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path):
    (tmp_path / "a").write_bytes(b"before")
    spawn = multiprocessing.get_context("spawn")
    answer = spawn.Queue()
    process = spawn.Process(target=too_much, args=(tmp_path / "a", answer))
    process.start()

    assert answer.get(timeout=HANG_SECONDS) == os.strerror(27)  # EFBIG
    process.join(HANG_SECONDS)
    assert listed(tmp_path) == {"a": b"before"}


@pytest.mark.parametrize("name", ["missing/a", "file/a", "folder", "pipe", "n" * 256, "a\0b"])
def test_where_no_file_can_be_nothing_changes(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())

    with pytest.raises(OSError, match=r"\w"):
        write(tmp_path / name, b"x")
    assert sorted(tmp_path.iterdir()) == before


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real / "a")
    for data in (b"one", b"two"):
        write(tmp_path / "link", data)
        assert listed(real) == {"a": data}
    assert (tmp_path / "link").is_symlink()
    assert sorted(tmp_path.iterdir()) == [tmp_path / "link", real]


def test_links_that_lead_in_a_circle_are_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "link")

    with pytest.raises(OSError, match=r"\w"):
        write(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
