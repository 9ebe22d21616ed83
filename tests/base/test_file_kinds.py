"""Tests that files which are no GGUF files are recognised, and that each remedy can be followed."""

import gzip
import io
import json
import pickle
import tarfile
import zipfile

import pytest

import npurt
from npurt.base.file_kinds import SIGNATURES, kind_of, recognised
from npurt.errors import ModelFormatError
from npurt.llm.convert.folder import convert
from npurt.llm.file.gguf import GGUF

# Remedies that say nothing, or that the reader has just tried.
EMPTY_ADVICE = ("check the path", "check that", "pass the path", "try again")


def archive(*names):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name in names:
            file.writestr(name, b"content")
    return data.getvalue()


def tar():
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        file.addfile(tarfile.TarInfo("a.gguf"))
    return data.getvalue()


def safetensors():
    head = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(head).to_bytes(8, "little") + head + bytes(4)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 98362432\n"
FILES = {  # name -> content, words of the kind, words of the remedy
    "model.safetensors": (safetensors(), "safetensors", "npurt convert {folder}"),
    "adapter_model.safetensors": (safetensors(), "LoRA adapter", "convert_lora_to_gguf.py"),
    "m.gguf": (LFS, "pointer of Git LFS", "git lfs pull"),
    "old.bin": (b"tjgg\x03\0\0\0", "before GGUF", "convert_llama_ggml_to_gguf.py"),
    "older.bin": (b"lmgg\0\0\0\0", "before GGUF", "-hf USER/REPO"),
    "m.rkllm": (b"\x13\x57\x9b\xdf" * 4, "RKLLM", "GGUF file of the same model"),
    "m.rknn": (b"RKNN\0\0\0\0\x06\0\0\0", "RKNN", "GGUF file of the same model"),
    "m.tflite": (b"\x1c\0\0\0TFL3\x14\0", "TensorFlow Lite", "GGUF file of the same model"),
    "m.onnx": (b"\x08\x08\x12\x07pytorch\x1a\x052.1.0", "ONNX", "GGUF file of the same model"),
    "m.pt": (archive("m/data.pkl", "m/version"), "PyTorch checkpoint", "save_pretrained"),
    "pytorch_model.bin": (archive("archive/data.pkl"), "PyTorch checkpoint", "npurt convert"),
    "m.pth": (pickle.dumps({"a": 1}, 2), "pickle", "save_pretrained"),
    "m.zip": (archive("model.gguf"), "zip archive", "unzip"),
    "m.gguf.gz": (gzip.compress(b"GGUF"), "gzip", "gunzip"),
    "m.tar": (tar(), "tar archive", "tar xf"),
    "page.gguf": (b"\n<!DOCTYPE html>\n<html>", "web page", "/resolve/"),
    "xml.gguf": (b"<?xml version='1.0'?><Error/>", "web page", "download the file itself"),
    "error.gguf": (b'{"error": "Repository not found"}', "JSON", "read it"),
    "notes.txt": ("Grüße\n".encode(), "text file", "read it"),
    "cut.txt": (("a" * 4095 + "ü").encode(), "text file", "read it"),
    "empty.gguf": (b"", "empty file", "download it again"),
    "zeros.gguf": (bytes(9000), "zeros", "download it again"),
    "a.npy": (b"\x93NUMPY\x01\0", "numpy", "GGUF file of the same model"),
    "skel.so": (b"\x7fELF\x02", "a program or a library", "ends in .gguf"),
    "random.gguf": (b"\xf3\x9d\x01\x88\xfe\x80", "begins with", "pass a GGUF file"),
}  # fmt: skip


def followed(remedy):
    """Check that *remedy* is not advice that says nothing; return it."""
    assert remedy
    assert not any(each in remedy for each in EMPTY_ADVICE), remedy
    assert "{" not in remedy
    return remedy


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_recognised_by_its_first_bytes(tmp_path, name):
    content, what, remedy = FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    kind = kind_of(path)
    assert what in kind.what
    assert remedy.format(folder=tmp_path) in followed(kind.remedy)


@pytest.mark.parametrize("name", FILES)
def test_every_reader_of_a_model_says_the_kind(tmp_path, name):
    content, what, remedy = FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    readers = {
        "GGUF": lambda: GGUF(path),
        "Llama": lambda: npurt.Llama(path),
        "convert": lambda: convert(path, tmp_path / "a.gguf", progress=False),
    }
    for reader in readers.values():
        with pytest.raises(ModelFormatError) as caught:
            reader()
        assert what in caught.value.what
        assert str(path) in caught.value.what
        assert remedy.format(folder=tmp_path) in followed(caught.value.remedy)


def test_each_row_of_the_table_is_reached(tmp_path):
    reached = set()
    for name, (content, *_) in FILES.items():
        kind = recognised(content[:4096], len(content), tmp_path / name)
        reached |= {row.what for row in SIGNATURES if row.what == kind.what}
    rare = {"a model that was compiled for RKLLM", "a LiteRT-LM model", "an ExecuTorch program",
            "a file compressed by xz", "a file compressed by bzip2", "a file compressed by zstd",
            "a 7z archive", "an HDF5 file, such as a Keras model",
            "a PDF document"}  # fmt: skip
    assert reached | rare == {row.what for row in SIGNATURES}


@pytest.mark.parametrize(
    ("names", "what", "remedy"),
    [
        (["config.json", "model.safetensors"], "a checkpoint", "npurt convert {folder}"),
        (["model.safetensors"], "no config.json", "download config.json"),
        (["config.json"], "without weights", "download model.safetensors"),
        (["config.json", "pytorch_model.bin"], "PyTorch checkpoint", "save_pretrained"),
        (["adapter_config.json", "adapter_model.safetensors"], "LoRA", "convert_lora_to_gguf.py"),
        (["a.gguf", "b.gguf"], "GGUF files", "{folder}/a.gguf, {folder}/b.gguf"),
        (["m.onnx"], "another runtime", "GGUF file of the same model"),
        (["x.txt"], "without a model (x.txt)", "pass a GGUF file"),
        ([], "without a model (nothing)", "pass a GGUF file"),
    ],
)
def test_a_folder_is_described_by_its_files(tmp_path, names, what, remedy):
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    kind = kind_of(tmp_path)
    assert what in kind.what
    assert remedy.format(folder=tmp_path) in followed(kind.remedy)
    with pytest.raises(ModelFormatError) as caught:
        GGUF(tmp_path)
    assert what in caught.value.what
    assert caught.value.remedy == kind.remedy


def test_a_missing_file_names_the_files_that_exist(tmp_path):
    (tmp_path / "SmolLM2-135M.gguf").write_bytes(b"x")
    with pytest.raises(ModelFormatError) as caught:
        GGUF(tmp_path / "SmolLM-135M.gguf")
    assert str(tmp_path / "SmolLM2-135M.gguf") in followed(caught.value.remedy)
    with pytest.raises(ModelFormatError) as caught:
        GGUF(tmp_path / "modells" / "a.gguf")
    assert f"{tmp_path} has no modells" in followed(caught.value.remedy)


def test_a_big_gguf_that_is_not_a_folder_is_sent_to_quantize(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(ModelFormatError, match="a GGUF file") as caught:
        convert(tmp_path / "a.gguf", tmp_path / "b.gguf", progress=False)
    assert "npurt quantize" in caught.value.remedy
