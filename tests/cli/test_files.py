"""Files that the command line reads and writes: every problem with one is a clear error."""

import json
import os
import resource
import subprocess
import sys

import pytest

from npurt.cli.verbs import bench
from tests.cli.conftest import assert_failed, environment
from tests.limits import HANG_SECONDS
from tests.llm import tiny

MODEL = tiny.path("llama3", "q8_0")
SHORT = ("-m", MODEL, "-n", 1, "-c", 64, "--temp", 0)
FULL = 100  # bytes, the largest file that the process may write

READS = {
    "model": ("run", "-p", "x", "-n", 1, "-m"),
    "draft": ("run", *SHORT, "-p", "x", "-md"),
    "prompt": ("run", *SHORT, "-f"),
    "embed": ("embed", "-m", MODEL, "-c", 64, "-f"),
    "bench": ("bench", "-m"),
    "compare": ("bench", "-m", MODEL, "-p", 1, "-n", 0, "-r", 1, "--compare"),
    "perplexity": ("perplexity", "-m", MODEL, "-f"),
    "plan": ("plan",),
    "bundle": ("doctor", "--from"),
    "regcmd": ("regcmd", "decode"),
    "check": ("regcmd", "check"),
    "regcmd run": ("regcmd", "run"),
    "skel": ("skel", "verify"),
}
WRITES = {
    "trace": ("run", *SHORT, "-p", "x", "--trace"),
    "bundle": ("doctor", "-dev", "rknpu", "--bundle"),
    "plot": ("bench", "--spec", "-m", MODEL, "-md", "lookup", "--draft-n", 1, "-n", 4, "-r", 1,
             "--plot"),
    "models": ("models", "fetch", "smollm2-135m", "--folder"),
}  # fmt: skip
NOT_READ = ("nothing", "folder", "file/below", "circle", "/proc/self/mem", "n" * 256, "empty")
NOT_WRITTEN = ("nothing/a.svg", "folder", "file/a.svg", "/proc/a.svg", f"{'n' * 256}.svg", "pipe")


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a folder, a file, an empty file, a pipe and a link to itself in it."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    return tmp_path


def content(folder):
    return sorted((path, path.lstat().st_size) for path in folder.rglob("*"))


@pytest.mark.parametrize("path", NOT_READ)
@pytest.mark.parametrize("command", READS.values(), ids=READS)
def test_what_cannot_be_read_is_named_with_a_remedy(npurt, folder, command, path):
    if path == "empty" and command in (READS["prompt"], READS["skel"]):
        return  # such a prompt is valid text, and such a file is invalid
    named = [] if path == "empty" else [path.rpartition("/")[2][:9]]
    assert_failed(npurt(*command, folder / path), *named)


@pytest.mark.parametrize("path", NOT_WRITTEN)
@pytest.mark.parametrize("command", WRITES.values(), ids=WRITES)
def test_what_cannot_be_written_is_named_and_nothing_is_left(npurt, folder, command, path):
    if command[0] == "models" and path in ("nothing/a.svg", "folder"):
        return  # a folder that can be created
    before = content(folder)
    result = npurt(*command, folder / path)

    assert result.code in (1, 2), result
    assert "remedy: " in result.err
    assert "Traceback" not in result.err
    assert content(folder) == before


@pytest.mark.parametrize("there", [b"", b"what was there"])
@pytest.mark.parametrize("name", ["trace", "bundle"])
def test_a_disk_that_is_full_leaves_what_was_there(folder, name, there):
    path = folder / "file"
    path.write_bytes(there)
    before = content(folder)
    done = subprocess.run(
        [sys.executable, "-m", "npurt", *map(str, WRITES[name]), str(path)],
        env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, FULL)),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )

    assert done.returncode in (1, 2), done
    assert "cannot write" in done.stderr
    # EFBIG: the error of a file-size limit, in place of ENOSPC
    assert os.strerror(27) in done.stderr
    assert "remedy: " in done.stderr
    assert "Traceback" not in done.stderr
    assert content(folder) == before
    assert path.read_bytes() == there


# --- Standard streams -----------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_standard_streams_may_be_closed(tmp_path, closed):
    """A file does not get a closed stream's descriptor; else output would go into the trace."""
    path = tmp_path / "trace.json"
    done = subprocess.run(
        [sys.executable, "-m", "npurt", *map(str, WRITES["trace"]), str(path), "--report"],
        env=environment(),
        preexec_fn=lambda: [os.close(fd) for fd in closed],
        capture_output=True,
        timeout=HANG_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done
    assert json.loads(path.read_text())
    assert b"Traceback" not in done.stderr


# --- JSON from untrusted files --------------------------------------------------------------------

ROW = '[{"model": "x", "test": "pp8", "tokens_per_second": %s}]'
HOSTILE = {
    "deep list": "[" * 100_000,
    "deep object": '{"a":' * 100_000,
    "deep value": ROW % ("[" * 100_000 + "]" * 100_000),
    "400 digits": ROW % ("9" * 400),
    "5000 digits": ROW % ("9" * 5000),
    "minus 400 digits": ROW % ("-" + "9" * 400),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_rows_to_compare_with_that_are_hostile_are_refused(npurt, tmp_path, text):
    path = tmp_path / "rows.json"
    path.write_text(text)

    assert_failed(npurt(*READS["compare"], path), "rows.json does not contain rows")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_program_of_registers_that_is_hostile_is_refused(npurt, tmp_path, text):
    path = tmp_path / "words.json"
    path.write_text(text)

    assert_failed(npurt("regcmd", "decode", path))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "0", "-0.0", "1e-320"])
def test_numbers_that_cannot_be_divided_by_are_compared_all_the_same(tmp_path, number):
    path = tmp_path / "rows.json"
    path.write_text(ROW % number)
    row = {"model": "x", "test": "pp8", "tokens_per_second": 5.0}

    assert bench.compare([row], bench.rows_of(path)).startswith("x pp8: ")
