"""Scripts for llama-cpp-python get results of the same shape, with npurt's text."""

import importlib
import inspect
import itertools
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from npurt.compat import llama_cpp
from npurt.compat.llama_cpp import (
    Llama,
)
from npurt.compat.llama_cpp.arguments import RANDOM_SEED
from npurt.errors import ModelFormatError, SettingError, UnsupportedOp
from tests.compat.questions import GREEDY, MESSAGES, PATH, PROMPT, RECORDED

# --- The interface -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED["methods"])
def test_arguments_have_the_recorded_names_order_and_defaults(name):
    wanted = [tuple(parameter) for parameter in RECORDED["methods"][name]]
    owner = llama_cpp if name in llama_cpp.__all__ else Llama
    parameters = inspect.signature(getattr(owner, name)).parameters.values()
    here = [
        (p.name,) if p.default is p.empty else (p.name, listed(p.default))
        for p in parameters
        if p.name not in ("self", "kwargs", "device")
    ]
    if name == "from_pretrained":  # npurt needs no file name here
        wanted[1] = ("filename", None)

    assert here == wanted


def listed(value):
    return list(value) if isinstance(value, tuple) else value


# --- Completions ----------------------------------------------------------------------------------


def test_a_completion_has_the_shape_and_npurts_text(llm, own):
    text = own.generate(PROMPT, max_tokens=9, **GREEDY)
    for call in (llm, llm.create_completion):
        result = call(PROMPT, max_tokens=9, stop=[], **GREEDY)

        assert result.pop("id").startswith("cmpl-")
        assert isinstance(result.pop("created"), int)
        count = len(own.tokenize(PROMPT))
        assert result == {
            "object": "text_completion",
            "model": PATH,
            "choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": "length"}],
            "usage": {"prompt_tokens": count, "completion_tokens": 9, "total_tokens": count + 9},
        }


def test_a_stream_is_the_text_in_chunks_and_the_reason_last(llm, own):
    text = own.generate(PROMPT, max_tokens=9, **GREEDY)

    *chunks, last = llm(PROMPT, max_tokens=9, stream=True, **GREEDY)

    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    assert {chunk["choices"][0]["finish_reason"] for chunk in chunks} == {None}
    assert last["choices"][0] == {
        "text": "", "index": 0, "logprobs": None, "finish_reason": "length"
    }  # fmt: skip
    assert len({chunk["id"] for chunk in (*chunks, last)}) == 1
    assert last["object"] == "text_completion"


def test_a_chat_completion_has_the_shape_and_npurts_answer(llm, own):
    answer = own.chat(MESSAGES, max_tokens=7, **GREEDY)
    result = llm.create_chat_completion(messages=MESSAGES, max_tokens=7, **GREEDY)

    assert result["id"].startswith("chatcmpl-")
    assert result["object"] == "chat.completion"
    assert result["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": answer},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    usage = result["usage"]
    assert usage["completion_tokens"] == 7
    assert usage["total_tokens"] == usage["prompt_tokens"] + 7


def test_a_chat_stream_has_the_role_first_and_the_reason_last(llm, own):
    answer = own.chat(MESSAGES, max_tokens=7, **GREEDY)
    chunks = list(llm.create_chat_completion(MESSAGES, max_tokens=7, stream=True, **GREEDY))

    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant"}
    assert "".join(delta["content"] for delta in deltas[1:-1]) == answer
    assert deltas[-1] == {}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_a_completion_echoes_its_prompt_when_asked(llm, own):
    text = own.generate(PROMPT, max_tokens=3, **GREEDY)
    assert llm(PROMPT, max_tokens=3, echo=True, **GREEDY)["choices"][0]["text"] == PROMPT + text


@pytest.mark.parametrize("end", [False, True])
def test_a_text_that_ends_says_stop_and_counts_no_end_token(llm, own, monkeypatch, end):
    word = own.tokenize("abc", add_bos=False)
    queue = itertools.chain(word, [own.tokenizer.eos])
    monkeypatch.setattr("npurt.compat.sampling.TokenSampler.sample", lambda *_: next(queue))

    result = llm(PROMPT, max_tokens=50, stop=None if end else "c")

    choice = result["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abc" if end else "ab", "stop")
    assert result["usage"]["completion_tokens"] == len(word)


@pytest.mark.parametrize("limit", [None, -1, 0])
def test_no_limit_is_none_or_not_positive(llm, limit):
    result = llm([5] * 490, max_tokens=limit, **GREEDY)

    assert result["choices"][0]["finish_reason"] == "length"
    # the last token is not evaluated and needs none of the 512 positions
    assert result["usage"]["completion_tokens"] == 23


def test_the_usual_limit_of_a_completion_is_16(llm):
    assert llm(PROMPT, **GREEDY)["usage"]["completion_tokens"] == 16


def test_a_seed_gives_one_series_of_texts(llm):
    def text(**options):
        return llm(PROMPT, temperature=2.0, max_tokens=20, **options)["choices"][0]["text"]

    assert text(seed=3) == text(seed=3) != text(seed=4)
    llm.set_seed(3)
    series = [text(), text()]
    assert series[0] != series[1]
    llm.set_seed(3)
    assert [text(), text()] == series
    with Llama(PATH, seed=3, verbose=False) as other:
        assert other(PROMPT, temperature=2.0, max_tokens=20)["choices"][0]["text"] == series[0]
    for seed in (-1, RANDOM_SEED):
        llm.set_seed(seed)
        assert len({text() for _ in range(4)}) > 1
        assert len({text(seed=seed) for _ in range(4)}) > 1


def test_an_empty_prompt_is_bos(llm):
    options = {"max_tokens": 5, **GREEDY}
    empty, begun = llm("", **options), llm([llm.token_bos()], **options)
    assert empty["choices"] == begun["choices"]
    assert empty["usage"]["prompt_tokens"] == 1


def test_a_model_is_opened_from_a_folder(tmp_path):
    (tmp_path / "a-q8_0.gguf").symlink_to(PATH)
    (tmp_path / "b-q4_0.gguf").symlink_to(PATH)
    for place in ({"repo_id": str(tmp_path)}, {"repo_id": "user/repo", "local_dir": tmp_path}):
        with Llama.from_pretrained(**place, filename="*Q8_0.gguf".lower(), verbose=False) as model:
            assert model.model_path.endswith("a-q8_0.gguf")
        for filename, count in ((None, 2), ("*", 2), ("c.gguf", 0), ("../*", 0)):
            with pytest.raises(ModelFormatError, match=f"has {count} GGUF models"):
                Llama.from_pretrained(**place, filename=filename)


def test_names_are_in_the_modules_of_there():
    for name, names in {
        "llama": "Llama LlamaGrammar LlamaState LogitsProcessorList StoppingCriteriaList",
        "llama_cache": "LlamaCache LlamaDiskCache LlamaRAMCache",
        "llama_grammar": "LlamaGrammar",
        "llama_speculative": "LlamaPromptLookupDecoding",
        "llama_tokenizer": "LlamaTokenizer",
    }.items():
        module = importlib.import_module(f"npurt.compat.llama_cpp.{name}")
        for each in names.split():
            assert getattr(module, each) is getattr(llama_cpp, each, getattr(module, each))


def test_too_long_a_prompt_is_a_value_error(llm):
    with pytest.raises(ValueError, match="do not fit"):
        llm([5] * 600)


# --- The object -----------------------------------------------------------------------------------


def test_a_model_is_pickled_by_its_arguments():
    with Llama(PATH, n_ctx=64, seed=5, chat_format="chatml", verbose=False) as model:
        model.eval([1, 5])
        copy = pickle.loads(pickle.dumps(model))
        with copy:
            assert (copy.n_ctx(), copy.n_tokens, copy._seed, copy.chat_format) == (
                64, 0, 5, "chatml"
            )  # fmt: skip
            assert (
                copy(PROMPT, max_tokens=4, **GREEDY)["choices"]
                == (model(PROMPT, max_tokens=4, **GREEDY)["choices"])
            )


def test_a_closed_model_says_so():
    model = Llama(PATH, verbose=False)
    model.close()
    model.close()
    with pytest.raises(SettingError, match="closed"):
        model(PROMPT)


def test_a_vocabulary_is_opened_alone(own):
    with Llama(PATH, vocab_only=True, verbose=False) as model:
        assert model.tokenize(b"abc") == own.tokenize("abc", special=False)
        assert model.n_vocab() == own.config.n_vocab
        assert model.metadata["general.architecture"] == "llama"
        for call in (model.n_ctx, model.save_state, lambda: model(PROMPT), lambda: model.eval([1])):
            with pytest.raises(SettingError, match="only the vocabulary"):
                call()


def test_a_vocabulary_of_a_damaged_file_is_refused_by_name(tmp_path):
    file = tmp_path / "damaged.gguf"
    file.write_bytes(Path(PATH).read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"damaged\.gguf"):
        Llama(str(file), vocab_only=True)


def test_the_tokenizer_is_an_object(llm, own):
    tokenizer = llm.tokenizer()

    ids = tokenizer.encode("né")
    assert ids == own.tokenize("né") == tokenizer.tokenize("né".encode())
    assert tokenizer.decode(ids) == "né"
    assert tokenizer.decode(ids[:-1]) == "n"  # the incomplete character is omitted
    assert tokenizer.detokenize(ids) == "né".encode()
    assert llm.token_nl() == own.tokenize("\n", add_bos=False)[-1]


def test_functions_without_a_model():
    logits = [[0.0, np.log(3.0)], [7.0, 7.0]]
    assert np.allclose(np.exp(Llama.logits_to_logprobs(logits)), [[0.25, 0.75], [0.5, 0.5]])
    prefix = Llama.longest_token_prefix
    assert [prefix([1, 2], [1, 3]), prefix([1], [1, 2]), prefix([], [1]), prefix([2], [1])] == [
        1, 1, 0, 0
    ]  # fmt: skip


def test_a_format_ends_with_its_text(llm, monkeypatch):
    with Llama(PATH, chat_format="chatml", verbose=False) as model:
        ids = itertools.chain(model.tokenize(b"ab<|im_end|>cd", add_bos=False), itertools.repeat(5))
        monkeypatch.setattr("npurt.compat.sampling.TokenSampler.sample", lambda *_: next(ids))
        choice = model.create_chat_completion(MESSAGES, max_tokens=60)["choices"][0]
        assert choice["message"]["content"] == "ab"
        assert choice["finish_reason"] == "stop"


def test_answers_are_objects_of_the_package_openai(llm, monkeypatch):
    monkeypatch.setitem(sys.modules, "openai.types.chat", None)
    with pytest.raises(UnsupportedOp, match="openai is not installed"):
        llm.create_chat_completion_openai_v1(MESSAGES)
    fake = types.SimpleNamespace(ChatCompletion=dict, ChatCompletionChunk=dict)
    monkeypatch.setitem(sys.modules, "openai.types.chat", fake)

    done = llm.create_chat_completion_openai_v1(MESSAGES, max_tokens=1)
    chunks = llm.create_chat_completion_openai_v1(MESSAGES, max_tokens=1, stream=True)

    assert done["object"] == "chat.completion"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
