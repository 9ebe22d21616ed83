"""Tests of tokenizers and templates of real models, against llama.cpp's ids and HF's prompts."""

import json
from pathlib import Path

import pytest

from npurt.llm.file.gguf import GGUF
from npurt.llm.text.chat import ChatTemplate
from npurt.llm.text.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data"
STRINGS = json.loads((DATA / "tokenizer/strings.json").read_text())
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
IN_QWEN = "</s>"  # a normal token in Qwen for HF and npurt, but markup for llama.cpp


@pytest.fixture(scope="module", params=MODELS)
def model(request, real_model):
    """Yield the name and metadata of each model."""
    with GGUF(real_model(request.param)) as file:
        return request.param, file.metadata


def ours(metadata):
    return Tokenizer.from_gguf(metadata)


def test_prompts_have_llama_cpps_ids(model):
    name, metadata = model
    variant = "Q4_1" if name == "smollm2-135m" else "Q4_K_M"
    oracle = json.loads((DATA / f"tokenizer/{name}.{variant}.tokens.json").read_text())
    tokenizer = ours(metadata)

    assert tokenizer.n_vocab == oracle["n_vocab"]
    assert (tokenizer.bos, tokenizer.eos) == (oracle["bos"], oracle["eos"])
    for prompt in oracle["prompts"]:
        text = prompt["text"]
        plain = tokenizer.encode(text, add_bos=False, special=False)
        assert plain == prompt["ids_no_special"]
        if not (name.startswith("qwen") and IN_QWEN in text):
            assert tokenizer.encode(text, add_bos=False) == prompt["ids_parse_special"]
        assert tokenizer.decode(plain) == text


def test_hard_strings_have_llama_cpps_ids(model):
    name, metadata = model
    if name == "qwen2.5-coder-1.5b":
        name = "qwen2.5-coder-0.5b"  # the same vocabulary
    oracle = json.loads((DATA / f"tokenizer/lcpp_real-{name}.json").read_text())
    tokenizer = ours(metadata)
    for text, ids in zip(STRINGS, oracle["res"], strict=True):
        assert tokenizer.encode(text, add_bos=False, special=False) == ids["plain"]
        if not (name.startswith("qwen") and IN_QWEN in text):
            assert tokenizer.encode(text, add_bos=False) == ids["special"]
            assert tokenizer.encode(text) == ids["bos_special"]
        assert tokenizer.decode(ids["special"]) == ids["special_detok"]


def test_ends_of_generation_are_the_markup_that_llama_cpp_stops_at(model):
    name, metadata = model
    tokenizer = ours(metadata)
    ends = {tokenizer.decode([i]) for i in tokenizer.eog}

    if name == "smollm2-135m":
        assert ends == {"<|endoftext|>", "<|im_end|>", "<reponame>"}
    else:
        stops = ("endoftext", "im_end", "fim_pad", "repo_name", "file_sep")
        assert ends == {f"<|{stop}|>" for stop in stops}


def test_padding_rows_are_never_sampled(model):
    name, metadata = model
    padding = set() if name == "smollm2-135m" else set(range(151_665, 151_936))
    assert ours(metadata).never_sampled == padding


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("smollm2-135m", "GGUF:SmolLM2-135M-Instruct"),
        ("qwen2.5-coder-0.5b", "GGUF:Qwen2.5-Coder-0.5B"),
    ],
)
def test_chat_prompts_are_those_of_transformers(real_model, name, key):
    oracle = json.loads((DATA / "chat/rendered.json").read_text())
    with GGUF(real_model(name)) as file:
        source = file.metadata["tokenizer.chat_template"]
    template = ChatTemplate(source, bos=None, eos="<|im_end|>")

    for conversation, given in oracle["inputs"].items():
        if given.get("tools") and "tools" not in template.variables:
            continue  # npurt describes the tools in the prompt, transformers omits them
        assert template.render(**given) == oracle["rendered"][key][conversation]
