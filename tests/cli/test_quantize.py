"""`npurt quantize`: what it prints and refuses; tests/llm/test_requantise.py has the files."""

import json

import numpy as np

from npurt.llm.file.gguf import GGUF
from tests.llm import tiny
from tests.llm.test_importance import modern

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


def test_types_of_single_tensors_and_an_importance_matrix(tmp_path, npurt):
    sums = [np.arange(1.0, 129)]
    matrix = modern(tmp_path / "i.gguf", {"blk.0.ffn_up.weight": (sums, [1])})
    result = npurt("quantize", F32, tmp_path / "a.gguf", "q4_0", "--imatrix", matrix,
                   r"--tensor-type=blk\.0\.attn=q8_0", "--tensor-type=attn_v=f16")  # fmt: skip
    assert result.code == 0, result
    with GGUF(tmp_path / "a.gguf") as file:
        assert file["blk.0.attn_v.weight"].dtype == "q8_0"
        assert file["blk.1.attn_v.weight"].dtype == "f16"
        assert file["blk.0.ffn_up.weight"].dtype == "q4_0"
        assert file.metadata["quantize.imatrix.entries_count"] == 1


def test_options_that_mean_nothing_are_refused(tmp_path, npurt):
    for option, says in (("--tensor-type=attn_v", "attn_v=q8_0"), ("--imatrix=none", "none"),
                         ("--tensor-type=x_y=f16", "x_y")):  # fmt: skip
        result = npurt("quantize", F32, tmp_path / "a.gguf", "q4_0", option)
        assert result.code != 0
        assert says in result.err
        assert "remedy" in result.err
    assert list(tmp_path.iterdir()) == []
