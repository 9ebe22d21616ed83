"""Tests of output files: a command refuses its own input file and impossible paths as output."""

import os
import shutil

import numpy as np
import pytest

from tests.cli.conftest import assert_failed
from tests.llm import tiny

MODEL = tiny.path("llama3", "q8_0")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the current folder, with a model, a link to it, a broken link, and text files."""
    shutil.copy(MODEL, tmp_path / "m.gguf")
    (tmp_path / "link.gguf").symlink_to("m.gguf")
    os.link(tmp_path / "m.gguf", tmp_path / "m.svg")
    (tmp_path / "circle.gguf").symlink_to("circle.gguf")
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("Hello")
    (tmp_path / "kernel.c").write_text("int x;")
    (tmp_path / "kernel.idl").write_text("interface kernel {};")
    np.save(tmp_path / "a.npy", np.zeros(4, np.int8))
    np.zeros(8, np.uint64).tofile(tmp_path / "program")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


RUN = ("run", "-m", "m.gguf", "-n", 1)
REGCMD = ("regcmd", "run", "program", "-i", "0x1000=a.npy")
SPEC = ("bench", "--spec", "-md", "lookup", "-n", 4, "-r", 1, "--draft-n", 1)


@pytest.mark.parametrize(
    "command",
    [
        (*RUN, "-p", "x", "--trace", "m.gguf"),
        (*RUN, "-p", "x", "--trace", "link.gguf"),
        (*RUN, "-p", "x", "--trace", "m.svg"),
        (*RUN, "-f", "text", "--trace", "text"),
        ("run", "-m", MODEL, "-n", 1, "-p", "x", "-md", "m.gguf", "--trace", "m.gguf"),
        ("run", "-m", MODEL, "-n", 1, "-p", "x", "--lora", "m.gguf:2", "--trace", "m.gguf"),
        ("quantize", "m.gguf", "link.gguf", "q4_0"),
        ("convert", ".", "-o", "text"),
        (*SPEC, "-m", "m.gguf", "--plot", "m.svg"),
        (*REGCMD, "-o", "0x2000=a.npy:int8:4"),
        (*REGCMD, "-o", "0x2000=program:int8:4"),
        ("skel", "build", "kernel.c", "--idl", "kernel.idl", "-o", "kernel.c"),
        ("skel", "build", "kernel.c", "--idl", "kernel.idl", "-o", "kernel.idl"),
    ],
    ids=lambda command: " ".join(map(str, command[:1] + command[-2:])),
)
def test_a_file_that_is_read_is_not_written(npurt, folder, command):
    before = content(folder)

    assert_failed(npurt(*command), "is an input as well", "another name", code=2)
    assert content(folder) == before


def test_a_chat_is_not_saved_over_its_model(npurt, folder):
    before = content(folder)
    result = npurt("chat", "-m", "m.gguf", stdin=b"/save link.gguf\n/save m.svg\n/save said\n")

    assert result.code == 1  # a command that came through a pipe failed
    assert result.err.count("is an input as well") == 2
    assert content(folder) == before | {"said": b"[]\n"}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("convert", "/"), "/ has no name"),
        (("quantize", "m.gguf", f"{'a' * 300}.gguf", "q4_0"), "name too long"),
        (("quantize", "m.gguf", "circle.gguf", "q4_0"), "not a regular file"),
        (("quantize", "m.gguf", "circle.gguf/out.gguf", "q4_0"), "circle.gguf"),
        (("quantize", "m.gguf", "folder", "q4_0"), "not a regular file"),
        (("quantize", "m.gguf", "/dev/null", "q4_0"), "not a regular file"),
        (("quantize", "m.gguf", "m.gguf/out.gguf", "q4_0"), "folder"),
        (("quantize", "m.gguf", "a\0b", "q4_0"), "null"),
        (("convert", "circle.gguf"), "circle.gguf"),
        (("convert", "a\0b"), "null"),
        (("convert", "a" * 300), "a" * 300),
    ],
    ids=lambda each: " ".join(map(str, each))[-30:] if isinstance(each, tuple) else "",
)
def test_a_path_that_cannot_be_used_is_an_error_with_a_remedy(npurt, folder, command, said):
    result = npurt(*command)
    assert result.code in (1, 2)
    assert_failed(result, code=result.code)
    assert said.lower() in result.err.lower()
    assert "free space" not in result.err


def test_an_error_of_a_file_that_no_verb_foresaw_has_a_remedy(npurt, monkeypatch):
    def fail(*_):
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr("npurt.models.location.locate", fail)
    assert_failed(npurt("quantize", "m", "out.gguf", "q4_0"), "/some/file: Permission denied")
