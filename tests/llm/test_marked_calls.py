"""Calls of functions that control tokens mark, as in Mistral's models, are found in answers.

The tiny model has no such tokens, so two of its control tokens are renamed.  A logits processor
lets it write a call.
"""

import json

import numpy as np
import pytest

import npurt
from npurt.compat import llama_cpp
from tests.llm import gguf_files as raw
from tests.llm import tiny

TEMPLATE = "[AVAILABLE_TOOLS]{{ tools }}{{ messages[0].content }}[TOOL_CALLS]"
RENAMED = {"<|start_header_id|>": "[TOOL_CALLS]", "<|end_header_id|>": "[ARGS]"}
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
MESSAGES = [{"role": "user", "content": "Hello"}]
CALL = {"name": "now", "arguments": '{"a": 1}'}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tiny.read(tiny.path("llama3", "q8_0"))
    tokens = next(value[1] for key, _, value in file.keys if key == "tokenizer.ggml.tokens")
    texts = [RENAMED.get(text, text) for text in tokens]
    file = file.with_key("tokenizer.ggml.tokens", raw.ARRAY, (raw.STRING, texts))
    file = file.with_key("tokenizer.chat_template", raw.STRING, TEMPLATE)
    return tiny.write(file, tmp_path_factory.mktemp("mistral"))


def writing(tokenize):
    """Return a logits processor that lets the model write a call."""
    ids = [*tokenize("[TOOL_CALLS]now[ARGS]" + CALL["arguments"]), tokenize("<|eot_id|>")[0]]
    left = iter(ids)

    def process(_, logits):
        chosen = np.full_like(logits, -np.inf)
        chosen[next(left)] = 0.0
        return chosen

    return process


@pytest.mark.parametrize("stream", [False, True])
def test_chat_shows_the_marks_and_parse_answer_finds_the_call(path, stream):
    with npurt.Llama(path, "cpu", n_ctx=256, progress=False) as llm:

        def ids(text):
            return llm.tokenize(text, add_bos=False)

        answer = llm.chat(MESSAGES, tools=TOOLS, logits_processor=writing(ids), stream=stream)
        text = "".join(answer)
        (call,) = llm.parse_answer(text, TOOLS)["tool_calls"]
        hidden = llm.chat(MESSAGES, tools=TOOLS, logits_processor=writing(ids), special=False)
        plain = llm.chat(MESSAGES, logits_processor=writing(ids))
        with pytest.raises(npurt.SettingError, match="special"):
            llm.chat(MESSAGES, special="yes")

    assert text == "[TOOL_CALLS]now[ARGS]" + CALL["arguments"]
    assert call["function"] == CALL
    assert hidden == plain == "now" + CALL["arguments"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_interface_of_llama_cpp_python_finds_the_call(path, stream):
    with llama_cpp.Llama(path, n_ctx=256, verbose=False) as llm:

        def ids(text):
            return llm.tokenize(text.encode(), add_bos=False, special=True)

        answer = llm.create_chat_completion(
            MESSAGES, tools=TOOLS, logits_processor=writing(ids), stream=stream
        )
        if stream:
            deltas = [chunk["choices"][0]["delta"] for chunk in answer]
            calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
            text = "".join(delta.get("content") or "" for delta in deltas)
            parts = [call["function"]["arguments"] for call in calls]
            call = {"name": calls[0]["function"]["name"], "arguments": "".join(parts)}
        else:
            message = answer["choices"][0]["message"]
            (made,) = message["tool_calls"]
            text, call = message["content"] or "", made["function"]

    assert json.loads(call["arguments"]) == json.loads(CALL["arguments"])
    assert call["name"] == "now"
    assert text == ""
