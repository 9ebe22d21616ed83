"""The examples in llama-cpp-python's README run after changing one import.

Each test makes the calls of one README example, with its arguments.  Examples that need images, the
C interface, the server or functionary are left out. Source of the calls: PyPI,
llama_cpp_python-0.3.36.tar.gz, README.md, "High-level API", and examples/high_level_api.
from_pretrained is tested in tests/models/test_hub.py.
"""

import json

import numpy as np
import pytest

import npurt.compat.llama_cpp as llama_cpp
from npurt.compat.llama_cpp import Llama
from npurt.compat.llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from tests.compat.questions import PATH, PROMPT

QUIZ = "Question: What are the names of the planets in the solar system? Answer: "
SERIES = [
    {"role": "system", "content": "You answer in JSON."},
    {"role": "user", "content": "Who won the world series in 2020"},
]
TEAM = {"type": "object", "properties": {"team_name": {"type": "string", "maxLength": 40}},
        "required": ["team_name"], "additionalProperties": False}  # fmt: skip


@pytest.fixture(scope="module")
def path(real_model):
    return str(real_model("smollm2-135m"))


def test_a_completion_is_made(path):
    with Llama(model_path=path, seed=1337) as llm:
        output = llm(QUIZ, max_tokens=48, stop=["Q:", "\n"], echo=True)
    assert '"text_completion"' in json.dumps(output, indent=2)
    text = output["choices"][0]["text"]
    assert text.startswith(QUIZ)
    assert len(text) > len(QUIZ)


def test_a_completion_is_streamed(path):
    with Llama(model_path=path, seed=1337, verbose=False) as llm:
        stream = llm(QUIZ, max_tokens=24, stop=["Q:"], stream=True)
        lines = [json.dumps(output, indent=2) for output in stream]
    assert len(lines) > 4


def test_a_chat_has_the_format_of_llama_2(path):
    with Llama(model_path=path, chat_format="llama-2", seed=1337, verbose=False) as llm:
        done = llm.create_chat_completion(
            messages=[
                {"role": "system", "content": "You describe what you are asked for."},
                {"role": "user", "content": "Describe the sea in detail please."},
            ],
            max_tokens=16,
        )
    assert done["choices"][0]["message"]["content"]


@pytest.mark.parametrize("schema", [None, TEAM])
def test_an_answer_is_json(path, schema):
    response_format = {"type": "json_object"} | ({} if schema is None else {"schema": schema})
    with Llama(model_path=path, chat_format="chatml", verbose=False) as llm:
        done = llm.create_chat_completion(
            messages=SERIES, response_format=response_format, temperature=0.7, seed=3,
            max_tokens=200,
        )  # fmt: skip
    (choice,) = done["choices"]
    assert choice["message"]["content"].lstrip().startswith("{")
    if choice["finish_reason"] == "stop":
        value = json.loads(choice["message"]["content"])
        assert schema is None or isinstance(value["team_name"], str)
    assert schema is None or choice["finish_reason"] == "stop"


def test_a_draft_comes_from_the_prompt():
    with Llama(PATH, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=10)) as llama:
        assert llama(PROMPT, max_tokens=4)["choices"][0]["text"]


def test_texts_are_embedded():
    with llama_cpp.Llama(model_path=PATH, embedding=True, n_ctx=256) as llm:
        one = llm.create_embedding("Hello, world!")
        two = llm.create_embedding(["Hello, world!", "Goodbye, world!"])
        rows = llm.embed("Hello, world!")
    assert two["data"][0]["embedding"] == one["data"][0]["embedding"] == rows
    assert np.ndim(rows) == 2  # one row per token if the model does not pool
    with Llama(PATH, embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN) as llm:
        assert np.ndim(llm.embed("Hello, world!")) == 1
    with Llama(PATH, embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_NONE) as llm:
        assert np.ndim(llm.embed("Hello, world!")) == 2


def test_a_context_has_the_size_that_was_asked_for(path):
    with Llama(model_path=path, n_ctx=2048, verbose=False) as llm:
        assert llm.n_ctx() == 2048


def test_a_gap_is_filled_in(real_model):
    """Run the calls of examples/high_level_api/high_level_api_infill.py."""
    path = str(real_model("qwen2.5-coder-0.5b"))
    with Llama(model_path=path, n_gpu_layers=-1, spm_infill=False, verbose=False) as llm:
        output = llm.create_completion(
            temperature=0.0, repeat_penalty=1.0, prompt="def add(", suffix="\n    return sum\n\n"
        )
    assert "a, b" in output["choices"][0]["text"]
