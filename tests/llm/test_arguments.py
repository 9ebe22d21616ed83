"""Tests of arguments: a wrong type raises an error with a remedy, never a bare TypeError."""

import inspect

import numpy as np
import pytest

import npurt
from npurt.errors import LayoutError, NpurtError, SettingError
from npurt.llm.decode import llama
from npurt.llm.decode.options import Options
from tests.llm import tiny
from tests.llm.conftest import PROMPT


@pytest.mark.parametrize(
    "options",
    [
        {"n_ctx": 1.5},
        {"n_ctx": "64"},
        {"n_batch": 8.0},
        {"n_threads": "2"},
        {"n_threads": 1.0},
        {"seed": "x"},
        {"seed": 1.0},
        {"seed": -2},
        {"draft": "lookup", "draft_max": 2.5},
    ],
    ids=str,
)
def test_a_model_is_opened_with_integers(options):
    *_, name = options
    with pytest.raises(SettingError, match=f"{name} is ") as caught:
        npurt.Llama(tiny.path(), **options)
    assert f"{name} must be an integer" in caught.value.remedy


@pytest.mark.parametrize("name", ["strict", "progress", "context_shift"])
def test_a_text_is_no_flag(name):
    with pytest.raises(SettingError, match=f"{name} is 'no'"):
        npurt.Llama(tiny.path(), **{name: "no"})


@pytest.mark.parametrize("path", [None, 5, b"model.gguf", ["model.gguf"]])
def test_a_path_is_text_or_a_path(path):
    for call in (npurt.Llama, npurt.GGUF):
        with pytest.raises(SettingError, match="is no path"):
            call(path)


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 2.5},
        {"max_tokens": "3"},
        {"max_tokens": True},
        {"seed": "x"},
        {"seed": 0.5},
        {"top_k": 1.5},
        {"top_k": "x"},
        {"temperature": "hot"},
        {"top_p": "0.5"},
        {"min_p": [0.1]},
        {"repeat_penalty": "1"},
    ],
    ids=str,
)
def test_options_of_a_generation_are_numbers(llm, options):
    (name,) = options
    for stream in (False, True):
        with pytest.raises(SettingError, match=f"{name} is ") as caught:
            llm.generate(PROMPT, stream=stream, **options)
        assert f"{name} must be a" in caught.value.remedy


@pytest.mark.parametrize("stop", [2.5, [True], b"x", ["a", b"x"], [None], [1, 0.5]])
def test_stop_texts_are_texts(llm, stop):
    with pytest.raises(SettingError, match="a stop text is"):
        llm.generate(PROMPT, max_tokens=1, stop=stop)


def test_numbers_may_be_numpys(llm):
    options = {"max_tokens": np.int64(3), "top_k": np.uint8(5), "temperature": np.float32(0.5)}

    llm.generate(PROMPT, seed=np.int32(3), **options)

    assert llm.timing.generated_tokens == 3


@pytest.mark.parametrize("text", [b"x", None, 5, ["x"]])
def test_what_is_tokenised_is_text(llm, text):
    with pytest.raises(LayoutError, match="text must be a str, not ") as caught:
        llm.tokenize(text)
    assert "decode" in caught.value.remedy


@pytest.mark.parametrize("ids", [5, None, b"\x01\x02", [1.5], "12", [None], [10**6], [-1]])
def test_what_is_detokenised_or_continued_are_ids(llm, ids):
    calls = [llm.detokenize, llm.eval, llm.eval_last]
    for call in calls if isinstance(ids, str) else [*calls, llm.generate]:
        with pytest.raises(LayoutError) as caught:
            call(ids)
        assert caught.value.remedy


@pytest.mark.parametrize("messages", [None, "Hello", 5, [5], ["Hello"], [{}], [None]])
def test_messages_are_dicts(llm, messages):
    with pytest.raises(NpurtError):
        llm.chat(messages, max_tokens=1)


@pytest.mark.parametrize("count", [1.5, "1", None])
def test_tokens_are_taken_back_by_number(llm, count):
    for call in (llm.rewind, llm.rollback):
        with pytest.raises(SettingError, match="n_tokens is "):
            call(count)


def test_the_types_of_options_name_the_options_of_generate():
    given = inspect.signature(npurt.Llama.generate).parameters
    assert list(Options.__annotations__) == [
        name for name in given if name not in ("self", "prompt", "n", "echo", "stream", "unknown")
    ]


def test_rows_of_the_embedding_matrix_have_their_own_name(llm):
    with npurt.GGUF(llm.path) as file:
        table = file["token_embd.weight"].dequantize()

    np.testing.assert_array_equal(llm.token_embeddings(PROMPT), table[PROMPT])
    assert llm.token_embeddings([]).shape == (0, table.shape[1])
    with pytest.raises(LayoutError):
        llm.embed(PROMPT)  # a flat list of ids is no list of texts
    for wrong in ([-1], [len(table)], 5, None, [1.5]):
        with pytest.raises(LayoutError):
            llm.token_embeddings(wrong)


def test_dir_of_a_model_lists_what_users_call_and_no_internals(llm):
    names = {name for name in dir(llm) if not name.startswith("__")}

    assert {"generate", "chat", "tokenize", "report", "n_ctx", "config", "close"} <= names
    assert not [name for name in names if name.startswith("_")]
    assert not names & {*llama.INTERNALS, "file", "lock"}
    for name in {*llama.INTERNALS, *names} - {"speculator"}:
        assert hasattr(npurt.Llama, name) or name in vars(llm)  # each exists
    for name in names - set(vars(llm)):
        assert inspect.getdoc(getattr(npurt.Llama, name)), f"Llama.{name} has no docstring"
