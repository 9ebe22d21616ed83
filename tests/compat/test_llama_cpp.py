"""What scripts for llama-cpp-python do gives results of its shapes, with npurt's text."""

import inspect
import itertools
import json
import pickle
import re
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

import npurt
from npurt.compat import llama_cpp
from npurt.compat.llama_cpp import (
    Llama,
    LlamaGrammar,
    LlamaState,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteriaList,
)
from npurt.compat.llama_cpp.arguments import DEFAULTS, MODEL_DEFAULTS, RANDOM_SEED
from npurt.compat.llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from npurt.errors import GrammarError, LayoutError, SettingError, UnsupportedOp
from npurt.llm.decode import stops
from tests.llm import tiny

PATH = str(tiny.path())
PROMPT = "Name the planets"
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
]
GREEDY = {"temperature": 0.0}
RECORDED = json.loads((Path(__file__).parents[1] / "data/compat/llama_cpp_python.json").read_text())
RECORDED_NAMES = {n: {p[0] for p in ps} for n, ps in RECORDED["methods"].items()}
MACHINE = {  # arguments that change no text
    "flash_attn": True, "main_gpu": 1, "n_gpu_layers": -1, "n_threads_batch": 1, "n_ubatch": 1,
    "no_perf": True, "numa": True, "offload_kqv": False, "op_offload": True, "split_mode": 2,
    "swa_full": True, "tensor_split": [1.0], "use_mlock": True, "use_mmap": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def llm():
    with Llama(model_path=PATH, n_gpu_layers=-1, verbose=False) as model:
        yield model


@pytest.fixture(scope="module")
def own():
    with npurt.Llama(PATH, n_ctx=512, progress=False) as model:
        yield model


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
    if name == "from_pretrained":  # npurt needs no file name
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
    monkeypatch.setattr("npurt.compat.sampling.Sampler.sample", lambda *_: next(queue))

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
    llm.set_seed(7)
    state = llm.save_state()
    wanted = llm([1, 5, 9, 7], max_tokens=5, **GREEDY)["choices"][0]["text"]
    llm.reset()
    llm.set_seed(8)
    assert llm.n_tokens == 0

    llm.load_state(state)

    assert llm.n_tokens == 3
    assert llm._seed == 7
    assert llm([1, 5, 9, 7], max_tokens=5, **GREEDY)["choices"][0]["text"] == wanted
    assert llm._llm.timing.reused_tokens == 3
    with pytest.raises(LayoutError, match="is no state"):
        llm.load_state(None)


def test_a_state_has_fields_and_is_pickled(llm):
    llm.reset()
    llm.eval([1, 5, 9])
    wanted = llm.sample(temp=0.0)
    state = pickle.loads(pickle.dumps(llm.save_state()))

    assert isinstance(state, LlamaState)
    assert state.input_ids.tolist() == [1, 5, 9]
    assert state.scores.shape == (1, llm.n_vocab())
    assert (state.n_tokens, state.llama_state_size) == (3, state.llama_state.nbytes)
    llm.reset()
    assert llm.save_state().scores.shape == (0, llm.n_vocab())
    llm.load_state(state)
    assert llm.sample(temp=0.0) == wanted


# --- Single tokens --------------------------------------------------------------------------------


def test_a_token_is_sampled_from_the_logits_of_eval(llm, own):
    own.reset()
    rows = own.eval([1, 5, 9])
    llm.reset()
    llm.eval([1, 5])
    llm.eval([9])
    llm.eval([])

    assert list(llm.eval_tokens) == llm.input_ids.tolist() == [1, 5, 9]
    assert np.array_equal(llm.eval_logits[0], rows[-1])
    assert llm.sample(temp=0.0) == llm.sample(temp=0.0, idx=2) == int(np.argmax(rows[-1]))
    assert llm.sample(logits_processor=[only(42)]) == 42
    llm.set_seed(1)
    tokens = [llm.sample(temp=2.0) for _ in range(8)]
    assert len(set(tokens)) > 1
    llm.set_seed(1)
    assert [llm.sample(temp=2.0) for _ in range(8)] == tokens
    with pytest.raises(UnsupportedOp, match="idx=1"):
        llm.sample(idx=1)


@pytest.mark.parametrize("forget", [Llama.reset, lambda llm: llm([1], max_tokens=1)])
def test_nothing_is_sampled_from_old_logits(llm, forget):
    llm.eval([1, 5])
    forget(llm)

    with pytest.raises(SettingError, match="no logits"):
        llm.sample()


def test_tokens_are_generated_one_by_one_with_the_end_token_last(llm, own, monkeypatch):
    prompt = own.tokenize(PROMPT)
    text = own.generate(prompt, max_tokens=6, **GREEDY)
    tokens = list(itertools.islice(llm.generate(prompt, temp=0.0), 6))

    assert llm.detokenize(tokens).decode(errors="replace") == text
    follow = llm.generate(tokens[-1:], temp=0.0, reset=False)
    assert next(follow) == next(itertools.islice(llm.generate(prompt, temp=0.0), 6, None))
    queue = iter([5, own.tokenizer.eos])
    monkeypatch.setattr("npurt.compat.sampling.Sampler.sample", lambda *_: next(queue))
    assert list(llm.generate(prompt)) == [5, own.tokenizer.eos]


# --- Functions of the caller ----------------------------------------------------------------------


def only(token):
    def processor(ids, scores):
        assert (ids.dtype, scores.dtype, scores.ndim) == (np.intc, np.float32, 1)
        scores[:] = -np.inf
        scores[token] = 0
        return scores

    return processor


def test_logits_processors_change_logits_in_their_order(llm, own):
    seen = []

    def watch(ids, scores):
        seen.append(ids.tolist())
        return scores

    word = own.tokenize("abc", add_bos=False)[0]
    text = own.tokenizer.stream(continued=True).push(word) * 3
    for given in (LogitsProcessorList([only(9), watch, only(word)]), [only(word)], only(word)):
        result = llm([1, 7], max_tokens=3, logits_processor=given)
        assert result["choices"][0]["text"] == text
    assert seen == [[1, 7], [1, 7, word], [1, 7, word, word]]
    answer = llm.create_chat_completion(MESSAGES, max_tokens=3, logits_processor=[only(word)])
    assert answer["choices"][0]["message"]["content"] == text
    for wrong in (lambda ids, scores: scores[:-1], lambda ids, scores: scores[None]):
        with pytest.raises(LayoutError, match="logits processor returned shape"):
            llm(PROMPT, logits_processor=wrong)


def test_a_text_has_the_least_number_of_tokens(llm):
    end = llm.token_eos()
    wish = {end: 1000.0}

    for least in (0, 4):
        processors = LogitsProcessorList([MinTokensLogitsProcessor(least, end)])
        result = llm(PROMPT, logit_bias=wish, logits_processor=processors, max_tokens=9)
        assert result["choices"][0]["finish_reason"] == "stop"
        # A bias is added after the caller's processors, so -inf stays -inf.
        assert result["usage"]["completion_tokens"] == least


def test_stopping_criteria_end_a_text_before_the_next_token(llm, own):
    prompt = own.tokenize(PROMPT)
    tokens = list(itertools.islice(llm.generate(prompt, temp=0.0), 3))
    shapes = set()

    def enough(ids, scores):
        shapes.add(scores.shape)
        return len(ids) >= len(prompt) + 3

    criteria = StoppingCriteriaList([lambda ids, scores: False, enough])
    result = llm(prompt, stopping_criteria=criteria, max_tokens=9, **GREEDY)

    assert result["choices"][0]["text"] == llm.detokenize(tokens).decode(errors="replace")
    assert result["choices"][0]["finish_reason"] == "stop"
    assert result["usage"]["completion_tokens"] == 3
    assert list(llm.generate(prompt, temp=0.0, stopping_criteria=criteria)) == tokens
    assert shapes == {(llm.n_vocab(),)}


def test_biases_and_penalties_have_their_formula(llm):
    llm.reset()
    llm.eval([1, 5, 9, 5])
    row = np.array(llm.eval_logits[0])
    request = llm._request(
        0.0, None, top_k=40, frequency_penalty=0.5, presence_penalty=0.25,
        logit_bias={3: -2.0}, logits_processor=[],
    )  # fmt: skip
    sampler = llm._sampler(request, [])
    adjusted = sampler.adjusted(row.astype(np.float32), [1, 5, 9, 5])

    wanted = row.copy()
    wanted[[1, 5, 9]] -= [0.75, 1.25, 0.75]
    wanted[3] -= 2
    never = sorted(llm._tokenizer.never_sampled)
    wanted[never] = -np.inf
    assert np.allclose(adjusted, wanted, atol=1e-6)
    assert llm([1], max_tokens=1, logit_bias={42: 1000.0})["usage"]["completion_tokens"] == 1
    with pytest.raises(LayoutError, match="99999"):
        llm(PROMPT, logit_bias={99999: 1.0})


def test_drafts_from_the_text_change_no_text(llm):
    plain = llm("a b c a b c a b c", max_tokens=12, **GREEDY)["choices"][0]
    with Llama(PATH, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4), verbose=False) as m:
        assert m("a b c a b c a b c", max_tokens=12, **GREEDY)["choices"][0] == plain
        assert m._llm.speculator is not None
    with pytest.raises(UnsupportedOp, match="draft_model="):
        Llama(PATH, draft_model=lambda ids: ids)


# --- Embeddings -----------------------------------------------------------------------------------


def test_embeddings_have_the_shapes_of_there_and_the_values_of_here(own):
    with Llama(PATH, embedding=True, pooling_type=1, verbose=False) as model:
        made = model.create_embedding(["Hello you", "x"])
        one, count = model.embed("Hello you", return_count=True)
        assert model.pooling_type() == 1
        assert model.create_embedding("x", model="m")["model"] == "m"
        assert model.embed(["Hello you"], normalize=True) == own.embed(["Hello you"]).tolist()

    wanted = own.embed(["Hello you", "x"], normalize=False).tolist()
    tokens = [len(own.tokenize(text)) for text in ("Hello you", "x")]
    assert (one, count) == (wanted[0], tokens[0])
    assert made == {
        "object": "list",
        "model": PATH,
        "data": [
            {"object": "embedding", "index": 0, "embedding": wanted[0]},
            {"object": "embedding", "index": 1, "embedding": wanted[1]},
        ],
        "usage": {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)},
    }


def test_without_pooling_each_token_has_an_embedding(own, llm):
    assert llm.pooling_type() == 0
    wanted = own.embed("Hello you", normalize=False, pooling="none").tolist()
    assert llm.embed("Hello you") == wanted
    assert llm.embed(["Hello you"]) == [wanted]


def test_long_texts_are_cut_or_refused():
    with Llama(PATH, embedding=True, n_ctx=8, pooling_type=3, verbose=False) as model:
        assert model.embed(PROMPT * 9, return_count=True)[1] == 8
        with pytest.raises(ValueError, match="8 positions"):
            model.embed(PROMPT * 9, truncate=False)
    for wrong in (5, -2, "mean"):
        with pytest.raises(SettingError, match="pooling_type"):
            Llama(PATH, pooling_type=wrong)


# --- What is ignored, and what is refused ---------------------------------------------------------


def test_arguments_of_machines_and_defaults_change_nothing():
    with Llama(PATH, verbose=False, n_batch=2048, **MACHINE, **MODEL_DEFAULTS) as model:
        options = {n: v for n, v in DEFAULTS.items() if n in RECORDED_NAMES["create_completion"]}
        result = model(PROMPT, max_tokens=1, mirostat_tau=5.0, **options | {"logprobs": None})
        assert result["usage"]["completion_tokens"] <= 1


@pytest.mark.parametrize("name", sorted(MODEL_DEFAULTS))
def test_a_model_is_not_opened_with_what_npurt_does_not_have(name):
    with pytest.raises(UnsupportedOp, match=f"does not have {name}="):
        Llama(PATH, **{name: "other"})


CALLS = {"create_completion": (PROMPT,), "create_chat_completion": ([],), "generate": ([1],),
         "sample": ()}  # fmt: skip


REFUSED = [(m, n) for m in CALLS for n in sorted(DEFAULTS) if n in RECORDED_NAMES[m]]


@pytest.mark.parametrize(("method", "name"), REFUSED)
def test_options_that_npurt_does_not_have_are_refused(llm, method, name):
    with pytest.raises(UnsupportedOp, match=f"does not have {name}="):
        getattr(llm, method)(*CALLS[method], **{name: "other"})


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"],
          "additionalProperties": False}  # fmt: skip
WILD = {"temperature": 4.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 60}


def test_a_grammar_decides_what_is_written(llm, tmp_path):
    file = tmp_path / "a.gbnf"
    file.write_text('root ::= [a-c]{3} "é"', "utf-8")
    for grammar in (LlamaGrammar.from_string(file.read_text("utf-8"), verbose=False),
                    LlamaGrammar.from_file(file), LlamaGrammar.from_file(str(file))):  # fmt: skip
        text = llm(PROMPT, grammar=grammar, seed=3, **WILD)["choices"][0]["text"]
        assert re.fullmatch("[a-c]{3}é", text)
    ids = list(llm.generate(llm.tokenize(b"hi"), grammar=grammar, temp=4.0, top_k=0, min_p=0.0))
    assert re.fullmatch("[a-c]{3}é", llm.detokenize(ids).decode())
    with pytest.raises(GrammarError, match="GBNF"):
        LlamaGrammar.from_string("root ::= (")
    with pytest.raises(GrammarError, match="GBNF"):
        llm(PROMPT, grammar="root ::= (")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_of_its_format(llm, stream):
    """As llama-cpp-python names a schema, and as OpenAI's interface does."""
    for options in (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"grammar": LlamaGrammar.from_json_schema(json.dumps(SCHEMA))},
    ):
        given = llm.create_chat_completion(MESSAGES, stream=stream, **options, **WILD)
        if stream:
            text = "".join(c["choices"][0]["delta"].get("content", "") for c in given)
        else:
            text = given["choices"][0]["message"]["content"]
            assert given["choices"][0]["finish_reason"] == "stop"
        assert json.loads(text) in ({"a": 1}, {"a": 22})


def test_single_tokens_have_no_grammar(llm):
    llm.reset()
    llm.eval([1, 5])
    with pytest.raises(UnsupportedOp, match="grammar="):
        llm.sample(grammar=LlamaGrammar.from_string('root ::= "a"'))


def test_log_probabilities_have_the_shape_of_completions(llm, own):
    done = llm(PROMPT, max_tokens=5, logprobs=2, temperature=0.0)["choices"][0]
    own.generate(PROMPT, max_tokens=5, logprobs=2, **GREEDY)
    exact = own.timing.logprobs
    given = done["logprobs"]

    assert list(given) == ["tokens", "text_offset", "token_logprobs", "top_logprobs"]
    assert given["token_logprobs"] == [each.logprob for each in exact]
    assert given["tokens"] == [
        own.tokenizer.piece(each.token).decode(errors="replace") for each in exact
    ]
    assert given["text_offset"][0] == len(PROMPT)
    sizes = [len(token) for token in given["tokens"]]
    assert np.diff(given["text_offset"]).tolist() == sizes[:-1]
    for token, value, top in zip(*(given[n] for n in list(given) if n != "text_offset"),
                                 strict=True):  # fmt: skip
        assert top[token] == value == max(top.values())  # greedy: the likeliest
    zero = llm(PROMPT, max_tokens=2, logprobs=0, temperature=0.0)["choices"][0]["logprobs"]
    assert [len(top) for top in zero["top_logprobs"]] == [1, 1]
    chunks = list(llm(PROMPT, max_tokens=5, logprobs=2, temperature=0.0, stream=True))
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for name, values in given.items():
        assert [value for part in parts for value in part[name]] == values
    with pytest.raises(UnsupportedOp, match="logprobs with echo"):
        llm(PROMPT, logprobs=1, echo=True)


def test_log_probabilities_have_the_shape_of_chats(llm):
    options = {"max_tokens": 4, "logprobs": True, "temperature": 0.0}
    choice = llm.create_chat_completion(MESSAGES, top_logprobs=2, **options)["choices"][0]
    content = choice["logprobs"]["content"]

    assert len(content) == 4
    for each in content:
        assert list(each) == ["token", "logprob", "bytes", "top_logprobs"]
        assert len(each["top_logprobs"]) == 2
        assert each["top_logprobs"][0]["logprob"] == each["logprob"]  # greedy: the likeliest
    chunks = llm.create_chat_completion(MESSAGES, top_logprobs=2, stream=True, **options)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [each for part in parts if part for each in part["content"]] == content
    plain = llm.create_chat_completion(MESSAGES, max_tokens=1, top_logprobs=2)["choices"][0]
    assert plain["logprobs"] is None
    for refused in (
        lambda: llm(PROMPT, logprobs=1001),
        lambda: llm.create_chat_completion(MESSAGES, logprobs=1, top_logprobs=1001),
    ):
        with pytest.raises(SettingError, match=r"logprobs is 1001"):
            refused()


def test_logits_all_is_taken_and_changes_nothing(llm):
    with Llama(PATH, logits_all=True, verbose=False) as other:
        options = {"max_tokens": 2, "logprobs": 1, "temperature": 0.0}
        given, wanted = other(PROMPT, **options), llm(PROMPT, **options)
    assert given["choices"] == wanted["choices"]


@pytest.mark.parametrize("texts", [None, 5, {"a"}, {"a": 1}, [None], [5.5]], ids=repr)
def test_what_is_no_text_is_not_embedded(llm, texts):
    with pytest.raises(LayoutError):
        llm.embed(texts)
    with pytest.raises(LayoutError):
        llm.create_embedding(texts)


def test_a_list_of_criteria_says_what_one_of_them_returned_wrong(llm):
    criteria = StoppingCriteriaList([lambda ids, scores: np.array([True, False])])
    with pytest.raises(LayoutError, match="criterion returned"):
        llm(PROMPT, stopping_criteria=criteria)


def test_typical_p_is_a_setting_of_completions(llm):
    """The most typical token of a flat distribution is not always the likeliest."""
    options = {"max_tokens": 8, "seed": 5, "temperature": 1.0, "top_k": 0}
    texts = {llm(PROMPT, typical_p=p, **options)["choices"][0]["text"] for p in (1.0, 0.02, 0.02)}

    assert len(texts) == 2


@pytest.mark.parametrize("name", ["set_cache"])
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
        assert model.save_state().llama_state.arrays[0].dtype == kept
    for wrong in ({"type_k": 8}, {"type_k": 0}, {"type_k": 8, "type_v": 8}):
        with pytest.raises(UnsupportedOp, match="type_k is"):
            Llama(PATH, **wrong)


def test_no_file_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="nothing"):
        Llama(str(tmp_path / "nothing.gguf"))


def test_another_thread_cannot_end_a_completion(llm, own, monkeypatch):
    text = own.generate(PROMPT, max_tokens=3, **GREEDY)
    split, refused = stops.split_at_stop, []

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

    monkeypatch.setattr(stops, "split_at_stop", between)  # which comes between two steps

    assert llm(PROMPT, max_tokens=3, **GREEDY)["choices"][0]["text"] == text
    assert llm.create_chat_completion(MESSAGES, max_tokens=2)["usage"]["completion_tokens"] <= 2
    assert len(refused) >= 4
    assert all(refused)


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
    assert tokenizer.decode(ids[:-1]) == "n"  # half a character is left out
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
        monkeypatch.setattr("npurt.compat.sampling.Sampler.sample", lambda *_: next(ids))
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
