"""Every public name of llama-cpp-python works here, or its error names a remedy."""

import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

from npurt.compat import llama_cpp
from npurt.compat.llama_cpp import Llama, LlamaGrammar, llama_types
from npurt.compat.llama_cpp.llama_chat_format import (
    CHATML_BOS_TOKEN,
    CHATML_CHAT_TEMPLATE,
    CHATML_EOS_TOKEN,
    LLAMA3_INSTRUCT_CHAT_TEMPLATE,
    MISTRAL_INSTRUCT_BOS_TOKEN,
    MISTRAL_INSTRUCT_CHAT_TEMPLATE,
    MISTRAL_INSTRUCT_EOS_TOKEN,
    MIXTRAL_INSTRUCT_CHAT_TEMPLATE,
    Jinja2ChatFormatter,
)
from npurt.compat.llama_cpp.llama_grammar import JSON_GBNF, LLAMA_GRAMMAR_DEFAULT_ROOT
from npurt.errors import UnsupportedOp
from tests.compat.questions import GREEDY, MESSAGES, PATH, PROMPT

DATA = Path(__file__).parents[1] / "data/compat"
NAMES = json.loads((DATA / "llama_cpp_python_names.json").read_text())
TABLE = json.loads((DATA / "llama_cpp_python_table.json").read_text())
MODULES = [name for name in NAMES if name.startswith("llama") and name != "llama_cpp"]
MODULE = llama_cpp.__name__


@pytest.fixture(scope="module")
def model():
    with Llama(PATH, logits_all=True, verbose=False) as model:
        yield model


def test_the_table_has_every_name():
    for section in (*MODULES, "Llama"):
        assert sorted(TABLE[section]) == NAMES[section]
    assert set(TABLE["llama_cpp"]) < set(NAMES["llama_cpp"])
    assert TABLE.keys() - {"about"} == NAMES.keys() - {"source", "fields"}


CASES = [(section, name) for section in (*MODULES, "Llama") for name in TABLE[section]]


@pytest.mark.parametrize(("section", "name"), CASES)
def test_a_name_is_what_the_table_says(model, section, name):
    owner = model if section == "Llama" else importlib.import_module(f"{MODULE}.{section}")
    if TABLE[section][name] == "works":
        value = getattr(owner, name)
        assert getattr(value, "__module__", None) != f"{MODULE}.refused"
        return
    with pytest.raises(UnsupportedOp, match=rf"\b{name}\b") as caught:
        getattr(owner, name)()
    assert caught.value.remedy == TABLE[section][name]


def test_some_test_uses_what_works():
    text = "\n".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py")))
    used = set(re.findall(r"\w+", text))
    works = {
        name
        for section, name in CASES
        if TABLE[section][name] == "works" and section != "llama_types"
    }
    assert not works - used


def test_names_of_the_c_interface_are_refused_but_for_some_numbers():
    for name in NAMES["llama_cpp"]:
        if name in TABLE["llama_cpp"]:
            assert isinstance(getattr(llama_cpp, name), int)
        else:
            with pytest.raises(UnsupportedOp, match=name) as caught:
                getattr(llama_cpp, name)
            assert "the class Llama" in caught.value.remedy
    with pytest.raises(UnsupportedOp, match="llama_backend_init"):
        from npurt.compat.llama_cpp import llama_backend_init  # noqa: F401
    assert not hasattr(llama_cpp, "planets")
    assert not hasattr(importlib.import_module(f"{MODULE}.llama_grammar"), "planets")


def test_attributes_that_are_refused_can_be_asked_for(model):
    assert not hasattr(model, "ctx")
    with pytest.raises(AttributeError, match=r"Llama\.ctx"):
        model.ctx  # noqa: B018


def test_attributes_are_the_arguments():
    given = {"n_threads": 1, "n_threads_batch": 2, "tensor_split": [1.0], "numa": True,
             "spm_infill": True, "last_n_tokens_size": 32, "n_batch": 64}  # fmt: skip
    same = {"chat_handler": None, "draft_model": None, "kv_overrides": None, "lora_base": None,
            "lora_path": None, "lora_scale": 1.0, "tokenizer_": None, "cache": None,
            "verbose": False, "model_path": PATH}  # fmt: skip
    with Llama(PATH, verbose=False, **given) as model:
        assert {name: getattr(model, name) for name in given | same} == given | same


# --- Types ----------------------------------------------------------------------------------------


def test_types_have_the_fields_of_there():
    for name, fields in NAMES["fields"].items():
        of_type = inspect.get_annotations(getattr(llama_types, name))
        inherited = getattr(llama_types, name).__annotations__
        assert set(fields) == of_type.keys() | inherited.keys()
    assert llama_cpp.CreateCompletionResponse is llama_types.CreateCompletionResponse


NESTED = {
    ("CreateCompletionResponse", "choices"): "CompletionChoice",
    ("CreateCompletionResponse", "usage"): "CompletionUsage",
    ("CompletionChoice", "logprobs"): "CompletionLogprobs",
    ("CreateChatCompletionResponse", "choices"): "ChatCompletionResponseChoice",
    ("CreateChatCompletionResponse", "usage"): "CompletionUsage",
    ("ChatCompletionResponseChoice", "message"): "ChatCompletionResponseMessage",
    ("ChatCompletionResponseChoice", "logprobs"): "ChatCompletionLogprobs",
    ("ChatCompletionResponseMessage", "tool_calls"): "ChatCompletionMessageToolCall",
    ("ChatCompletionMessageToolCall", "function"): "ChatCompletionMessageToolCallFunction",
    ("ChatCompletionLogprobs", "content"): "ChatCompletionLogprobToken",
    ("ChatCompletionLogprobToken", "top_logprobs"): "ChatCompletionTopLogprobToken",
    ("CreateChatCompletionStreamResponse", "choices"): "ChatCompletionStreamResponseChoice",
    ("ChatCompletionStreamResponseChoice", "delta"): "ChatCompletionStreamResponseDelta",
    ("ChatCompletionStreamResponseDelta", "tool_calls"): "ChatCompletionMessageToolCallChunk",
    ("CreateEmbeddingResponse", "data"): "Embedding",
    ("CreateEmbeddingResponse", "usage"): "EmbeddingUsage",
}  # the types of nested values


def require_fits(value, kind):
    """Assert that *value* and its nested values have the keys of the TypedDict *kind*."""
    hints = kind.__annotations__
    assert kind.__required_keys__ <= value.keys() <= hints.keys()
    for name, inner in value.items():
        for each in inner if isinstance(inner, list) else [inner]:
            if isinstance(each, dict) and (typed := NESTED.get((kind.__name__, name))):
                require_fits(each, getattr(llama_types, typed))


@pytest.mark.parametrize("stream", [False, True])
def test_results_are_of_the_types(model, stream):
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"enum": [1]}}}}
    tools = [{"type": "function", "function": function}]
    options = {"max_tokens": 4, "stream": stream, **GREEDY}
    with Llama(PATH, chat_format="chatml-function-calling", verbose=False) as calling:
        chat = f"CreateChatCompletion{'StreamResponse' if stream else 'Response'}"
        for results, kind in (
            (model(PROMPT, logprobs=1, echo=True, **options), "CreateCompletionResponse"),
            (
                model.create_chat_completion(MESSAGES, logprobs=True, top_logprobs=1, **options),
                chat,
            ),
            (
                calling.create_chat_completion(
                    MESSAGES, tools=tools, tool_choice={"function": {"name": "f"}}, **options
                ),
                chat,
            ),
        ):
            for result in results if stream else [results]:
                require_fits(result, getattr(llama_types, kind))
    require_fits(model.create_embedding("Hi"), llama_types.CreateEmbeddingResponse)


def test_json_is_a_grammar(model):
    grammar = LlamaGrammar.from_string(JSON_GBNF, verbose=False)
    options = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 200}
    whole = 0
    for seed in range(6):
        choice = model(PROMPT, grammar=grammar, seed=seed, **options)["choices"][0]
        assert choice["text"].startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["text"]), dict)
            whole += 1
    assert whole


def test_formats_have_the_texts_of_their_tokens():
    for template, bos, eos in (
        (CHATML_CHAT_TEMPLATE, CHATML_BOS_TOKEN, CHATML_EOS_TOKEN),
        (MISTRAL_INSTRUCT_CHAT_TEMPLATE, MISTRAL_INSTRUCT_BOS_TOKEN, MISTRAL_INSTRUCT_EOS_TOKEN),
    ):
        turns = [*MESSAGES[1:], {"role": "assistant", "content": "Hi"}, *MESSAGES[1:]]
        prompt = Jinja2ChatFormatter(template, eos, bos)(messages=turns).prompt
        assert f"Hi{eos}" in prompt
    assert MIXTRAL_INSTRUCT_CHAT_TEMPLATE == MISTRAL_INSTRUCT_CHAT_TEMPLATE
    assert "<|start_header_id|>" in LLAMA3_INSTRUCT_CHAT_TEMPLATE
    assert LLAMA_GRAMMAR_DEFAULT_ROOT == "root"
