"""Checkpoints of models that no file of llama.cpp is here for: their logits are transformers'."""

import json

import numpy as np
import pytest

from npurt.errors import ModelFormatError
from npurt.llm.convert.folder import convert
from npurt.llm.decode.model import Llama
from npurt.llm.file.gguf import GGUF
from tests.llm import checkpoints, seeded
from tests.llm.reference import nmse
from tests.llm.test_logits import FLOAT_NMSE


def folder_of(model, folder):
    seeded.write(model, folder)
    checkpoints.tokenizer("llama3").save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("model", seeded.MODELS)
def test_logits_are_those_of_transformers(model, tmp_path):
    convert(folder_of(model, tmp_path), tmp_path / "made.gguf", "f32", progress=False)
    with Llama(tmp_path / "made.gguf", "numpy", n_ctx=64, kv_type="f32") as llm:
        found = llm.eval(seeded.IDS)
    known = np.load(seeded.FOLDER / f"{model}-logits.npy")

    assert known.std() > 0.1
    assert nmse(found, known) < FLOAT_NMSE


def test_mixtral_is_a_llama_with_experts(tmp_path):
    """The keys and names that llama.cpp reads."""
    convert(folder_of("mixtral", tmp_path), tmp_path / "made.gguf", "f32", progress=False)
    with GGUF(tmp_path / "made.gguf") as file:
        assert file.architecture == "llama"
        assert file.metadata["llama.expert_count"] == 4
        assert file.metadata["llama.expert_used_count"] == 2
        assert file["blk.1.ffn_down_exps.weight"].shape == (4, 64, 96)
        assert file["blk.1.ffn_gate_inp.weight"].shape == (4, 64)


@pytest.mark.parametrize(
    ("model", "setting"),
    [("gemma", {"hidden_activation": "gelu"}), ("gemma", {"use_bidirectional_attention": True}),
     ("mixtral", {"sliding_window": 64}), ("mixtral", {"num_local_experts": 0})],
)  # fmt: skip
def test_settings_that_gguf_cannot_say_are_refused(model, setting, tmp_path):
    folder = folder_of(model, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | setting))
    with pytest.raises(ModelFormatError, match=next(iter(setting))):
        convert(folder, tmp_path / "made.gguf", "f32", progress=False)
    assert not (tmp_path / "made.gguf").exists()
