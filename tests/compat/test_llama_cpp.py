"""What scripts for llama-cpp-python do gives results of its shapes, with npurt's text."""

import itertools
import threading

import numpy as np
import pytest

import npurt
from npurt.compat.llama_cpp import DEFAULTS, MACHINE, MODEL_DEFAULTS, RANDOM_SEED, Llama
from npurt.errors import LayoutError, SettingError, UnsupportedOp
from npurt.llm.decode import generate
from tests.llm import tiny

PATH = str(tiny.path())
PROMPT = "Name the planets"
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
]
GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module")
def llm():
    with Llama(model_path=PATH, n_gpu_layers=-1, verbose=False) as model:
        yield model


@pytest.fixture(scope="module")
def own():
    with npurt.Llama(PATH, n_ctx=512, progress=False) as model:
        yield model


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
    ids = llm.tokenize(b"Name")

    assert llm(PROMPT, max_tokens=3, echo=True, **GREEDY)["choices"][0]["text"] == PROMPT + text
    echoed = llm(ids, max_tokens=3, echo=True, **GREEDY)["choices"][0]["text"]
    assert echoed.startswith(own.detokenize(ids))


@pytest.mark.parametrize("end", [False, True])
def test_a_text_that_ends_says_stop_and_counts_no_end_token(llm, own, monkeypatch, end):
    word = own.tokenize("abc", add_bos=False)
    queue = itertools.chain(word, [own.tokenizer.eos])
    monkeypatch.setattr("npurt.llm.decode.text.Sampler.sample", lambda *_: next(queue))

    result = llm(PROMPT, max_tokens=50, stop=None if end else "c")

    choice = result["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abc" if end else "ab", "stop")
    assert result["usage"]["completion_tokens"] == len(word)


@pytest.mark.parametrize("limit", [None, -1, 0])
def test_no_limit_is_none_or_not_positive(llm, limit):
    result = llm([5] * 490, max_tokens=limit, **GREEDY)

    assert result["choices"][0]["finish_reason"] == "length"
    assert result["usage"]["completion_tokens"] == 23  # of 512 positions; the last needs no room


def test_the_usual_limit_of_a_completion_is_16(llm):
    assert llm(PROMPT, **GREEDY)["usage"]["completion_tokens"] == 16


def test_seeds_are_those_of_calls_or_of_the_model(llm):
    def text(**options):
        return llm(PROMPT, temperature=2.0, max_tokens=20, **options)["choices"][0]["text"]

    assert text(seed=3) == text(seed=3) != text(seed=4)
    llm.set_seed(3)
    assert text() == text(seed=3)
    for seed in (-1, RANDOM_SEED):
        llm.set_seed(seed)
        assert len({text() for _ in range(4)}) > 1
        assert len({text(seed=seed) for _ in range(4)}) > 1


def test_too_long_a_prompt_is_a_value_error(llm):
    with pytest.raises(ValueError, match="do not fit"):
        llm([5] * 600)


# --- Tokens and states ----------------------------------------------------------------------------


def test_tokens_are_made_of_bytes_and_bytes_of_tokens(llm, own):
    ids = llm.tokenize("né".encode())

    assert ids == own.tokenize("né", special=False)
    assert ids[0] == llm.token_bos() == own.tokenizer.bos
    assert llm.token_eos() == own.tokenizer.eos
    assert llm.tokenize("né".encode(), add_bos=False) == ids[1:]
    assert llm.detokenize(ids) == "né".encode()
    assert llm.detokenize(ids[:-1]) == "né".encode()[:-1]  # half a character
    assert llm.detokenize(ids, special=True) == own.detokenize(ids).encode()
    for wrong in ("text", b"\xff"):
        with pytest.raises(LayoutError):
            llm.tokenize(wrong)


def test_sizes_are_those_of_the_model(llm, own):
    assert (llm.n_ctx(), llm.n_vocab(), llm.n_embd()) == (512, 608, own.config.width)
    assert llm.metadata["general.architecture"] == "llama"
    assert all(isinstance(value, str) for value in llm.metadata.values())


def test_a_state_comes_back(llm):
    llm.reset()
    llm.eval([1, 5, 9])
    state = llm.save_state()
    wanted = llm([1, 5, 9, 7], max_tokens=5, **GREEDY)["choices"][0]["text"]
    llm.reset()
    assert llm.n_tokens == 0

    llm.load_state(state)

    assert llm.n_tokens == 3
    assert llm([1, 5, 9, 7], max_tokens=5, **GREEDY)["choices"][0]["text"] == wanted
    assert llm._llm.timing.reused_tokens == 3


# --- What is ignored, and what is refused ---------------------------------------------------------


def test_arguments_of_machines_and_defaults_change_nothing():
    idle = dict.fromkeys(MACHINE, 1)
    with Llama(PATH, verbose=False, n_batch=2048, **idle, **MODEL_DEFAULTS) as model:
        result = model(PROMPT, max_tokens=1, mirostat_tau=5.0, **DEFAULTS)
        assert result["usage"]["completion_tokens"] <= 1


@pytest.mark.parametrize("name", sorted(MODEL_DEFAULTS))
def test_a_model_is_not_opened_with_what_npurt_does_not_have(name):
    with pytest.raises(UnsupportedOp, match=f"does not have {name}="):
        Llama(PATH, **{name: "other"})


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_options_that_npurt_does_not_have_are_refused(llm, name):
    for call in (lambda **o: llm(PROMPT, **o), lambda **o: llm.create_chat_completion([], **o)):
        with pytest.raises(UnsupportedOp, match=f"does not have {name}="):
            call(**{name: "other"})


def test_zero_logprobs_are_logprobs(llm):
    with pytest.raises(UnsupportedOp, match="logprobs=0"):
        llm(PROMPT, logprobs=0)


@pytest.mark.parametrize("name", ["create_embedding", "embed", "generate", "sample", "set_cache"])
def test_methods_that_npurt_does_not_have_are_refused(llm, name):
    with pytest.raises(UnsupportedOp, match=f"does not have {name} yet"):
        getattr(llm, name)("x")


def test_names_that_never_were_are_type_errors(llm):
    with pytest.raises(TypeError, match="max_token"):
        llm(PROMPT, max_token=3)
    with pytest.raises(TypeError, match="n_gpu_layer"):
        Llama(PATH, n_gpu_layer=3)


def test_formats_have_the_names_of_there():
    with Llama(PATH, chat_format="llama-2", verbose=False) as model:
        assert "[INST]" in model._llm.template.source
    with pytest.raises(SettingError, match="no chat template 'functionary'"):
        Llama(PATH, chat_format="functionary")


@pytest.mark.parametrize(("given", "kept"), [(None, np.float16), (1, np.float16), (0, np.float32)])
def test_the_cache_has_the_type_that_was_asked_for(given, kept):
    with Llama(PATH, type_k=given, type_v=given, verbose=False) as model:
        model.eval([1])
        assert model.save_state().arrays[0].dtype == kept
    for wrong in ({"type_k": 8}, {"type_k": 0}, {"type_k": 8, "type_v": 8}):
        with pytest.raises(UnsupportedOp, match="type_k is"):
            Llama(PATH, **wrong)


def test_no_file_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="nothing"):
        Llama(str(tmp_path / "nothing.gguf"))


def test_another_thread_cannot_end_a_completion(llm, own, monkeypatch):
    text = own.generate(PROMPT, max_tokens=3, **GREEDY)
    split, refused = generate.split_at_stop, []

    def meanwhile():
        try:
            llm("Other", max_tokens=1)
        except SettingError as error:
            refused.append("another thread" in error.what)

    def between(*arguments):
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=meanwhile)
            thread.start()
            thread.join()
        return split(*arguments)

    monkeypatch.setattr(generate, "split_at_stop", between)  # which comes between two steps

    assert llm(PROMPT, max_tokens=3, **GREEDY)["choices"][0]["text"] == text
    assert llm.create_chat_completion(MESSAGES, max_tokens=2)["usage"]["completion_tokens"] <= 2
    assert len(refused) >= 4
    assert all(refused)
