"""`npurt quantize`: what it prints and refuses; tests/llm/test_requantise.py has the files."""

import json

from tests.llm import tiny

F32 = tiny.path("llama3", "f32")


def test_a_model_that_was_quantised_before_is_warned_about(tmp_path, npurt):
    result = npurt("quantize", tiny.path("llama3", "q8_0"), tmp_path / "a.gguf", "Q4_0", "--json")
    assert result.code == 0, result
    told = json.loads(result.out)
    assert told["bytes"] == (tmp_path / "a.gguf").stat().st_size
    assert told["type"] == "q4_0"
    assert told["quantised_before"] > 0
    assert "quantised already" in result.err
    assert "quantised already" not in npurt("quantize", F32, tmp_path / "b.gguf", "q8_0").err


def test_a_type_that_nobody_knows_is_refused(tmp_path, npurt):
    result = npurt("quantize", F32, tmp_path / "a.gguf", "q9_x")
    assert result.code == 2
    assert "q4_k" in result.err
    assert list(tmp_path.iterdir()) == []
