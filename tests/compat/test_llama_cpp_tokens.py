"""Tokens, states, callbacks and embeddings: llama-cpp-python's shapes with npurt's values."""

import itertools
import os
import pickle

import numpy as np
import pytest

from npurt.compat.llama_cpp import (
    BaseLlamaCache,
    Llama,
    LlamaDiskCache,
    LlamaRAMCache,
    LlamaState,
    LlamaTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)
from npurt.compat.llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding
from npurt.compat.llama_cpp.llama_tokenizer import BaseLlamaTokenizer
from npurt.errors import LayoutError, SettingError, StateFormatError, UnsupportedOp
from tests.compat.questions import GREEDY, MESSAGES, PATH, PROMPT
from tests.llm import tiny

# --- Tokens and states ----------------------------------------------------------------------------


def test_tokens_are_made_of_bytes_and_bytes_of_tokens(llm, own):
    ids = llm.tokenize("né".encode())

    assert ids == own.tokenize("né", special=False)
    assert ids[0] == llm.token_bos() == own.tokenizer.bos
    assert llm.token_eos() == own.tokenizer.eos
    assert llm.tokenize("né".encode(), add_bos=False) == ids[1:]
    assert llm.detokenize(ids) == "né".encode()
    assert llm.detokenize(ids[:-1]) == "né".encode()[:-1]  # an incomplete character
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


def test_prompts_go_on_from_the_states_of_a_cache(llm):
    """Two alternating prompts, neither a prefix of the other, continue from their cached states."""
    prompts = [[1, *range(5, 25)], [1, *range(30, 50)]]
    wanted = [llm([*prompt, 7], max_tokens=5, **GREEDY)["choices"] for prompt in prompts]
    cache = LlamaRAMCache()
    llm.set_cache(cache)
    try:
        for prompt in prompts:
            llm(prompt, max_tokens=1, **GREEDY)
        for chunk in llm(prompts[1], max_tokens=1, stream=True, **GREEDY):
            assert chunk["choices"]
        assert len(cache.cache_state) == 2
        assert cache.cache_size == sum(s.llama_state_size for s in cache.cache_state.values())
        llm.set_seed(4)
        for prompt, text in zip(prompts, wanted, strict=True):
            assert llm([*prompt, 7], max_tokens=5, **GREEDY)["choices"] == text
            assert llm._llm.timing.reused_tokens == len(prompt)
        seed = llm._seed
    finally:
        llm.set_cache(None)
    llm.set_seed(4)
    for prompt in prompts:
        llm(prompt, max_tokens=1, **GREEDY)
    assert llm._seed == seed  # loading a cached state does not restore its seed
    for refused in ("x", {}):
        with pytest.raises(UnsupportedOp, match="does not have set_cache"):
            llm.set_cache(refused)


class FirstAndLast(BaseLlamaCache):
    """A script's own cache class, which keeps only the first and the last state."""

    def __init__(self):
        super().__init__()
        self.kept = []

    @property
    def cache_size(self):
        return sum(state.llama_state_size for state in self.kept)

    def __contains__(self, key):
        return bool(self.kept)

    def __getitem__(self, key):
        return self.kept[0]

    def __setitem__(self, key, value):
        self.kept[1:] = [value]


def test_a_cache_may_be_the_scripts_own(llm):
    cache = FirstAndLast()
    llm.set_cache(cache)
    try:
        llm([1, 5, 9], max_tokens=1, **GREEDY)
        llm.reset()
        llm([1, 5, 9], max_tokens=1, **GREEDY)
        assert llm._llm.timing.reused_tokens == 2
    finally:
        llm.set_cache(None)
    assert (len(cache.kept), cache.cache_size > 0) == (2, True)


def test_states_on_disk_serve_other_processes(llm, tmp_path):
    prompts = [[1, *range(5, 25)], [1, *range(30, 50)]]
    wanted = [llm([*prompt, 7], max_tokens=5, **GREEDY)["choices"] for prompt in prompts]
    llm.set_cache(LlamaDiskCache(str(tmp_path / "a/b")))
    for prompt in prompts:
        llm(prompt, max_tokens=1, **GREEDY)
    llm.set_cache(None)
    cache = LlamaDiskCache(str(tmp_path / "a/b"))
    files = list((tmp_path / "a/b").iterdir())
    assert cache.cache_size == sum(file.stat().st_size for file in files)
    assert len(files) == 2
    with Llama(PATH, seed=4, verbose=False) as other:
        other.set_cache(cache)
        for prompt, text in zip(prompts, wanted, strict=True):
            assert prompt in cache
            assert other([*prompt, 7], max_tokens=5, **GREEDY)["choices"] == text
            assert other._llm.timing.reused_tokens == len(prompt)
    for file in (tmp_path / "a/b").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    with Llama(PATH, verbose=False) as other:
        other.set_cache(cache)
        with pytest.raises(StateFormatError, match="damaged"):
            other(prompts[0], max_tokens=1)
    with Llama(str(tiny.path("qwen2")), verbose=False) as different:
        different.set_cache(cache)
        different(prompts[0], max_tokens=1)  # the cached states belong to another model
        assert different._llm.timing.reused_tokens == 0


def test_a_cache_on_disk_drops_what_was_used_longest_ago(llm, tmp_path):
    states = []
    for ids in ([1, 5, 9], [1, 6, 8], [2, 7]):
        llm.reset()
        llm.eval(ids)
        states.append(llm.save_state())
    cache = LlamaDiskCache(tmp_path)
    with pytest.raises(KeyError):
        cache[[1]]
    for age, state in enumerate(states[:2]):
        cache[state.input_ids.tolist()] = state
        for file in tmp_path.iterdir():
            os.utime(file, ns=(0, age))
    (size, _) = (file.stat().st_size for file in tmp_path.iterdir())
    os.utime(next(iter(tmp_path.iterdir())), ns=(0, 0))
    found = cache[[1, 5, 9, 4]]
    assert found.input_ids.tolist() == [1, 5, 9]
    llm.load_state(found)
    assert llm.input_ids.tolist() == [1, 5, 9]
    assert [3] not in cache

    cache.capacity_bytes = 2 * size
    cache[[2, 7]] = states[2]

    assert [1, 5, 9] in cache
    assert cache[[1, 6, 8]].input_ids.tolist() == [1, 5, 9]
    with pytest.raises(LayoutError, match="in memory"):
        cache[[1]] = found
    (tmp_path / "x.npurt-state").write_bytes(b"no state")
    with pytest.raises(StateFormatError, match="is not a saved state"):
        cache[[1]]


def test_a_cache_drops_what_was_used_longest_ago(llm):
    states = []
    for ids in ([1, 5, 9], [1, 5, 8], [2, 7]):
        llm.reset()
        llm.eval(ids)
        states.append(llm.save_state())
    cache = LlamaRAMCache(capacity_bytes=sum(s.llama_state_size for s in states[:2]))
    for state in states[:2]:
        cache[state.input_ids.tolist()] = state
    assert cache[[1, 5, 9, 4]] is states[0]
    assert [3] not in cache
    with pytest.raises(KeyError):
        cache[[3]]

    cache[[2, 7]] = states[2]

    assert list(cache.cache_state.values()) == [states[0], states[2]]
    with pytest.raises(SettingError, match="capacity_bytes"):
        LlamaRAMCache(capacity_bytes=None)


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
    monkeypatch.setattr("npurt.compat.sampling.TokenSampler.sample", lambda *_: next(queue))
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

    def plain(ids, scores):
        seen.append(ids.tolist())
        return scores

    watch: LogitsProcessor = plain

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

    for minimum in (0, 4):
        processors = LogitsProcessorList([MinTokensLogitsProcessor(minimum, end)])
        result = llm(PROMPT, logit_bias=wish, logits_processor=processors, max_tokens=9)
        assert result["choices"][0]["finish_reason"] == "stop"
        # A bias is added after the caller's processors, so -inf stays -inf.
        assert result["usage"]["completion_tokens"] == minimum


def test_stopping_criteria_end_a_text_before_the_next_token(llm, own):
    prompt = own.tokenize(PROMPT)
    tokens = list(itertools.islice(llm.generate(prompt, temp=0.0), 3))
    shapes = set()

    def enough(ids, scores):
        shapes.add(scores.shape)
        return len(ids) >= len(prompt) + 3

    never: StoppingCriteria = lambda ids, scores: False  # noqa: E731
    criteria = StoppingCriteriaList([never, enough])
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


def test_drafts_are_what_followed_the_end_before():
    find = LlamaPromptLookupDecoding.find_candidate_pred_tokens
    for ids, maximum, draft in (
        ([7, 8, 9, 7, 8, 9, 7, 8], 3, [9, 7, 8]),
        ([5, 8, 1, 2, 8], 2, [1, 2]),
        ([5, 8, 8], 9, [8]),
        ([1, 2, 3], 2, []),
        ([1], 2, []),
    ):
        assert find(np.array(ids), max_ngram_size=2, num_pred_tokens=maximum).tolist() == draft
    drafter = LlamaPromptLookupDecoding(num_pred_tokens=1)
    assert isinstance(drafter, LlamaDraftModel)
    assert drafter(np.array([5, 8, 1, 2, 8])).tolist() == [1]


def test_a_tokenizer_is_read_from_a_file(llm):
    tokenizer = LlamaTokenizer.from_ggml_file(PATH)
    assert isinstance(tokenizer, BaseLlamaTokenizer)
    assert tokenizer.encode("abc") == llm.tokenizer().encode("abc")
