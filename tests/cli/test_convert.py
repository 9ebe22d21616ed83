"""`npurt convert`: its output and errors; tests/llm/test_convert.py tests the files it writes."""

import json

from tests.llm import tiny
from tests.llm.checkpoints import folder_of


def test_a_folder_becomes_a_model_that_runs(tmp_path, npurt):
    folder = folder_of("llama3", tmp_path / "tiny-llama")

    result = npurt("convert", folder, "--type", "F32", "--json")

    assert result.code == 0, result
    told = json.loads(result.out)
    assert told["path"] == str(tmp_path / "tiny-llama-f32.gguf")
    assert told["bytes"] == (tmp_path / "tiny-llama-f32.gguf").stat().st_size
    run = ("-p", "a", "-n", 8, "--temp", 0, "--raw")
    there = npurt("run", "-m", tiny.path("llama3", "f32"), *run)
    assert npurt("run", "-m", told["path"], *run).out == there.out != ""


def test_a_type_that_nobody_knows_is_refused_first(tmp_path, npurt):
    result = npurt("convert", tmp_path / "none", "--type", "q9")
    assert result.code == 2
    assert "q4_k" in result.err


def test_a_folder_of_another_kind_is_refused_with_a_remedy(tmp_path, npurt):
    result = npurt("convert", tmp_path, "-o", tmp_path / "a.gguf")
    assert result.code == 1
    assert "config.json" in result.err
    assert "remedy: " in result.err
    assert list(tmp_path.iterdir()) == []
