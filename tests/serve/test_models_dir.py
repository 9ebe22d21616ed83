"""Which files of a folder are served as models, and under which names."""

import os
import shutil

import pytest

from npurt.errors import SettingError
from npurt.llm.file.gguf import GGUF
from npurt.llm.measure.memory import memory
from npurt.serve.router.folder import scan
from tests.llm import gguf_files as raw
from tests.llm import tiny
from tests.llm.test_parts import split

LLAMA, QWEN = tiny.path("llama3", "q8_0"), tiny.path("qwen2", "q8_0")


def names(folder):
    models, notes = scan(folder)
    return {model.name for model in models}, notes


def test_files_are_named_after_themselves(tmp_path):
    (tmp_path / "deep/er").mkdir(parents=True)
    shutil.copy(LLAMA, tmp_path / "a.b-Q8_0.gguf")
    shutil.copy(QWEN, tmp_path / "deep/er/c.GGUF")
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / ".partial.gguf").write_text("no model")

    models, notes = scan(tmp_path, 64)

    assert [model.name for model in models] == ["a.b-Q8_0", "c"]
    assert notes == []
    with GGUF(LLAMA) as file:
        assert models[0].memory == memory(file, 64)
    assert models[0].positions == 64
    assert models[0].nbytes == LLAMA.stat().st_size


def test_files_of_one_name_are_named_with_their_folders(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        shutil.copy(LLAMA, tmp_path / folder / "same.gguf")
    shutil.copy(LLAMA, tmp_path / "x/other.gguf")
    assert names(tmp_path) == ({"x/same", "y/same", "other"}, [])


def test_a_split_model_is_one(tmp_path):
    parts = split(LLAMA, tmp_path, tensors=7)
    assert len(parts) > 1
    models, notes = scan(tmp_path)
    assert ([model.name for model in models], notes) == (["m"], [])
    assert models[0].nbytes == sum(part.stat().st_size for part in parts)

    parts[1].unlink()
    shutil.copy(LLAMA, tmp_path / "other.gguf")
    found, notes = names(tmp_path)
    assert found == {"other"}
    assert "missing" in notes[0]


def test_what_is_no_model_is_left_out_with_a_note(tmp_path):
    shutil.copy(LLAMA, tmp_path / "good.gguf")
    (tmp_path / "broken.gguf").write_bytes(LLAMA.read_bytes()[:5000])
    (tmp_path / "empty.gguf").write_bytes(b"")
    os.symlink("nowhere", tmp_path / "dangling.gguf")
    shutil.copy(LLAMA, os.fsencode(tmp_path) + b"/\xff.gguf")
    file = tiny.read(LLAMA)
    for name, key, value in [
        ("mmproj", "general.architecture", "clip"),
        ("lora", "general.type", "adapter"),
        ("odd", "general.architecture", "of-tomorrow"),
    ]:
        (tmp_path / f"{name}.gguf").write_bytes(file.with_key(key, raw.STRING, value).encode())

    found, notes = names(tmp_path)

    assert found == {"good"}
    said = dict(note.split(" is left out: ") for note in notes)
    assert said.keys() == {"broken.gguf", "empty.gguf", "\\udcff.gguf", "mmproj.gguf",
                           "lora.gguf", "odd.gguf"}  # fmt: skip
    assert "vision projector" in said["mmproj.gguf"]
    assert "adapter" in said["lora.gguf"]
    assert "of-tomorrow" in said["odd.gguf"]


def test_an_encoder_embeds(tmp_path):
    shutil.copy(LLAMA, tmp_path / "writer.gguf")
    shutil.copy(tiny.path("bert", "bf16"), tmp_path / "encoder.gguf")
    models, _ = scan(tmp_path)
    assert {model.name: model.embeds for model in models} == {"writer": False, "encoder": True}


def test_a_folder_without_models_is_refused(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(SettingError, match=r"no model that npurt runs\n  x.gguf is left out"):
        scan(tmp_path)
    for path in (tmp_path / "missing", tmp_path / "x.gguf"):
        with pytest.raises(SettingError, match="cannot read the folder"):
            scan(path)
