"""Files of a model that change while the model is open: another file is noticed, never mixed in."""

import os
import shutil
import subprocess
import sys

import pytest

import npurt
from npurt.errors import ModelFormatError
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.mapped import MappedGGUF
from tests.llm import tiny, variants
from tests.llm.conftest import OPTIONS
from tests.llm.test_parts import split


@pytest.fixture
def copied(tmp_path):
    """Return a copy of a tiny model that a test may change."""
    return shutil.copyfile(tiny.path("llama3", "q8_0"), tmp_path / "model.gguf")


@pytest.fixture
def other(tmp_path):
    """Return a model with the same header and size as `copied`, and other weights."""
    target = variants.write_other_weights(tiny.path("llama3", "q8_0"), tmp_path / "other.gguf")
    os.utime(target)
    return target


def identity(path):
    with MappedGGUF(path) as file:
        return file.identity


def test_the_identity_is_of_the_opened_file(copied, other):
    first = identity(copied)
    assert first == identity(copied)

    with GGUF(copied) as file:
        os.replace(other, copied)
        assert file.identity == first
    assert identity(copied) != first


def test_a_part_of_a_split_model_belongs_to_its_identity(tmp_path):
    paths = split(tiny.path("llama3", "q8_0"), tmp_path, tensors=7)
    first = identity(paths[0])
    os.utime(paths[-1], ns=(1, 1))

    assert identity(paths[0]) != first


def test_a_model_whose_file_is_replaced_by_rename_goes_on(copied, other):
    ids = tiny.ids("llama3", 12)
    with npurt.Llama(copied, device="cpu", **OPTIONS) as llm:
        wanted = llm.eval(ids)
        os.replace(other, copied)
        llm.reset()
        assert (llm.eval(ids) == wanted).all()
        os.unlink(copied)
        llm.reset()
        assert (llm.eval(ids) == wanted).all()


def overwrite(path, data):
    with open(path, "r+b") as file:
        file.write(data)


@pytest.mark.parametrize("device", ["cpu", "hexagon:sim", "rknpu:sim"])
def test_a_model_whose_file_is_overwritten_is_refused(copied, other, device):
    ids = tiny.ids("llama3", 12)
    with npurt.Llama(copied, device=device, **OPTIONS) as llm:
        llm.eval(ids)
        overwrite(copied, other.read_bytes())
        with pytest.raises(ModelFormatError, match=r"model\.gguf was changed") as caught:
            llm.eval(ids)
        with pytest.raises(ModelFormatError):
            llm.token_embeddings(ids)
        assert "rename" in caught.value.remedy


TRUNCATE = """
import os, sys, npurt
from npurt.errors import ModelFormatError
with npurt.Llama(sys.argv[1], device="cpu", n_ctx=64, progress=False) as llm:
    llm.eval([1, 2, 3])
    os.truncate(sys.argv[1], 4096)
    try:
        llm.eval([4, 5])
    except ModelFormatError as error:
        print(error.what)
"""


def test_a_model_whose_file_is_truncated_is_refused(copied):
    """In a process of its own: a read past the end of a mapped file ends the process (SIGBUS)."""
    done = subprocess.run(
        [sys.executable, "-c", TRUNCATE, copied], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "model.gguf was changed" in done.stdout


def test_a_tensor_of_a_truncated_file_is_refused(copied):
    with GGUF(copied) as file:
        os.truncate(copied, 4096)
        with pytest.raises(ModelFormatError, match="was changed"):
            file["token_embd.weight"]
        with pytest.raises(ModelFormatError, match="was changed"):
            file.beginning("token_embd.weight", 512)
