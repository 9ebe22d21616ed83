"""Scripts for mlx-lm get results of the same shape, with npurt's text."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest

import npurt
from npurt.compat import mlx_lm
from npurt.compat.mlx_lm import (
    BatchResponse,
    GenerationResponse,
    generate,
    load,
    stream_generate,
)
from npurt.compat.mlx_lm import sample_utils as sampling
from npurt.compat.mlx_lm.generate import generate_step
from npurt.compat.mlx_lm.models import cache as caches
from npurt.compat.mlx_lm.models.cache import make_prompt_cache
from npurt.errors import (
    LayoutError,
    ModelFormatError,
    SettingError,
    StateFormatError,
    UnsupportedOp,
)
from tests.llm import tiny

PATH = tiny.path()
PROMPT = "Name the planets"
MESSAGES = [{"role": "user", "content": "Hello"}]
GREEDY = {"temperature": 0.0}
RECORDED = json.loads((Path(__file__).parents[1] / "data/compat/mlx_lm.json").read_text())


def only(token):
    def sampler(logprobs):
        return np.array([token])

    return sampler


# --- The interface -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED["functions"])
def test_arguments_have_the_recorded_names_order_and_defaults(name):
    modules = (mlx_lm, sampling, caches, inspect.getmodule(generate_step))
    owner = next(module for module in modules if hasattr(module, name))
    here = [
        [p.name] if p.default is p.empty else [p.name, p.default]
        for p in inspect.signature(getattr(owner, name)).parameters.values()
        if p.kind is not p.VAR_KEYWORD and p.name not in ("seed", "random")
    ]

    assert here == RECORDED["functions"][name]


def test_responses_have_the_recorded_fields():
    for kind in (GenerationResponse, BatchResponse):
        fields = list(inspect.signature(kind).parameters)
        assert fields == RECORDED["fields"][kind.__name__]


# --- Loading --------------------------------------------------------------------------------------


def test_a_model_is_loaded_from_a_file_or_from_its_folder(tmp_path, own):
    (tmp_path / "model.gguf").symlink_to(PATH)
    model, tokenizer, config = load(str(tmp_path), return_config=True, lazy=True, n_ctx=64)
    with model:
        assert isinstance(model, npurt.Llama)
        assert model.n_ctx == 64
        assert config["general.architecture"] == "llama"
        assert tokenizer.vocab_size == own.config.n_vocab
    (tmp_path / "other.gguf").symlink_to(PATH)
    with pytest.raises(ModelFormatError, match="has 2 GGUF models"):
        load(tmp_path)


def test_a_repository_is_asked_from_the_hub(monkeypatch):
    asked = []

    def fetch(hub, wanted, **options):
        asked.append(wanted)
        return PATH

    monkeypatch.setattr("npurt.models.hub.Hub.fetch", fetch)
    model, _ = load("user/repo:Q8_0", revision="v1")
    model.close()

    (wanted,) = asked
    assert (wanted.repo, wanted.revision) == ("user/repo", "v1")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"adapter_path": "lora"}, UnsupportedOp),
        ({"model_config": {"rope": 1}}, UnsupportedOp),
        ({"tokenizer_config": {"padding_side": "left"}}, UnsupportedOp),
        ({"tokenizer_config": {"eos_token": "two tokens"}}, SettingError),
    ],
    ids=str,
)
def test_what_npurt_does_not_have_is_refused_when_a_model_is_loaded(options, error):
    with pytest.raises(error, match=next(iter(options)) if error is UnsupportedOp else "one token"):
        load(PATH, **options)


def test_a_wrong_place_is_refused():
    with pytest.raises(ModelFormatError, match="there is no file"):
        load("nothing")
    with pytest.raises(ModelFormatError, match=r"nothing\.gguf"):
        load("nothing.gguf")


# --- Text -----------------------------------------------------------------------------------------


def test_a_text_is_npurts_without_sampling(pair, own):
    text = own.generate(PROMPT, max_tokens=9, **GREEDY)
    ids = own.tokenize(PROMPT)

    for prompt in (PROMPT, ids, np.array(ids)):
        assert generate(*pair, prompt, max_tokens=9) == text
    assert generate(*pair, prompt=tokenizer_text(pair, ids), max_tokens=9) == text


def tokenizer_text(pair, ids):
    text = pair[1].decode(ids)
    assert text.startswith(pair[1].bos_token)  # BOS is not added a second time
    return text


def test_responses_come_token_by_token_and_the_reason_last(pair, own):
    ids = own.tokenize(PROMPT)
    own.reset()
    logits = own.eval(ids)[-1]
    *others, last = responses = list(stream_generate(*pair, PROMPT, max_tokens=5))

    assert [r.generation_tokens for r in responses] == [1, 2, 3, 4, 5]
    assert {r.finish_reason for r in others} == {None}
    assert last.finish_reason == "length"
    assert all(r.prompt_tokens == len(ids) and not r.from_draft for r in responses)
    first = responses[0].logprobs
    below = logits.astype(np.float64) - logits.max()
    wanted = below - np.log(np.exp(below[np.isfinite(below)]).sum())
    real = np.isfinite(first)  # padding rows are never sampled
    assert first.shape == wanted.shape
    assert np.exp(first).sum() == pytest.approx(1, abs=1e-5)
    # equal up to a constant, which comes from the probability of the padding rows
    assert np.ptp((first - wanted)[real]) < 1e-4
    assert responses[0].token == int(np.argmax(np.where(real, wanted, -np.inf)))
    assert responses[0].peak_memory > 0


def test_a_text_ends_at_its_end_token(pair):
    model, tokenizer = pair
    words = tokenizer.encode("abc", add_special_tokens=False)
    queue = iter([*words, tokenizer.eos_token_id])
    *_, last = responses = list(
        stream_generate(model, tokenizer, PROMPT, sampler=lambda x: np.array([next(queue)]))
    )

    assert "".join(r.text for r in responses) == "abc"
    assert (last.finish_reason, last.token) == ("stop", tokenizer.eos_token_id)
    assert last.generation_tokens == len(words) + 1


def test_other_tokens_can_end_a_text(own):
    word = own.tokenize("abc", add_bos=False)[0]
    model, tokenizer = load(PATH, tokenizer_config={"eos_token": own.detokenize([word])})
    with model:
        assert word in tokenizer.eos_token_ids
        (response,) = stream_generate(model, tokenizer, PROMPT, sampler=only(word))
        assert (response.text, response.finish_reason) == ("", "stop")


def test_verbose_prints_text_and_rates(pair, capsys):
    text = generate(*pair, PROMPT, max_tokens=4, verbose=True)

    printed = capsys.readouterr().out
    assert f"==========\n{text}\n==========\nPrompt: " in printed
    assert "Generation: 4 tokens, " in printed
    generate(*pair, PROMPT, max_tokens=4)
    assert capsys.readouterr().out == ""


def test_no_limit_is_minus_one(pair):
    *_, last = stream_generate(*pair, [5] * 490, max_tokens=-1, sampler=only(5))
    assert (last.generation_tokens, last.finish_reason) == (23, "length")
    for wrong in (0, -2):
        with pytest.raises(SettingError, match="max_tokens"):
            generate(*pair, PROMPT, max_tokens=wrong)


@pytest.mark.parametrize(
    "name", ["draft_model", "max_kv_size", "kv_bits", "input_embeddings"]
)  # fmt: skip
def test_options_that_npurt_does_not_have_are_refused(pair, name):
    with pytest.raises(UnsupportedOp, match=name):
        generate(*pair, PROMPT, **{name: 4})


def test_a_function_that_npurt_does_not_have_is_refused():
    with pytest.raises(UnsupportedOp, match="convert"):
        mlx_lm.convert("x")


def test_progress_and_tokens_are_told(pair, own):
    told = []
    steps = generate_step(
        [1, 5, 9], pair[0], max_tokens=2, prompt_progress_callback=lambda *n: told.append(n)
    )
    tokens = [token for token, _ in steps]

    assert told == [(0, 3), (3, 3)]
    assert own.generate([1, 5, 9], max_tokens=2, **GREEDY) == own.detokenize(tokens)


# --- Prompt caches --------------------------------------------------------------------------------


def test_a_cache_goes_on_where_it_was_after_other_texts(pair, own):
    model = pair[0]
    first, second = [1, 5, 9], [7, 8]
    cache = make_prompt_cache(model)
    steps = generate_step(first, model, max_tokens=4, prompt_cache=cache)
    tokens = [token for token, _ in steps]
    assert cache[0].offset == cache[0].size() == 7
    wanted = own.generate([*first, *tokens, *second], max_tokens=6, **GREEDY)

    generate(*pair, [3] * 30, max_tokens=5)

    assert generate(*pair, second, max_tokens=6, prompt_cache=cache) == wanted
    # the last token of the first completion was not evaluated
    assert model.timing.reused_tokens == 6
    assert cache[0].offset == 7 + 2 + 6


def test_without_a_cache_no_state_is_copied(pair, monkeypatch):
    monkeypatch.setattr(npurt.Llama, "snapshot", lambda _: pytest.fail("a copy for nobody"))
    generate(*pair, PROMPT, max_tokens=2)


def test_two_caches_do_not_touch_each_other(pair):
    a, b = make_prompt_cache(pair[0]), make_prompt_cache(pair[0])
    generate(*pair, [1, 5, 9], max_tokens=3, prompt_cache=a)
    kept = a[0].tokens
    generate(*pair, [1, 5, 8], max_tokens=3, prompt_cache=b)

    assert a[0].tokens == kept
    assert b[0].tokens[:3] == (1, 5, 8)


def test_a_cache_comes_back_from_a_file(pair, tmp_path):
    model = pair[0]
    cache = make_prompt_cache(model)
    generate(*pair, [1, 5, 9], max_tokens=4, prompt_cache=cache)
    file = tmp_path / "prompt.safetensors"

    caches.save_prompt_cache(str(file), cache, {"model": "tiny"})
    back, metadata = caches.load_prompt_cache(str(file), return_metadata=True)
    wanted = generate(*pair, [7], max_tokens=5, prompt_cache=cache)
    model.reset()

    assert metadata == {"model": "tiny"}
    assert caches.load_prompt_cache(file)[0].tokens == back[0].tokens
    assert generate(*pair, [7], max_tokens=5, prompt_cache=back) == wanted
    assert model.timing.reused_tokens == 6
    assert [f.name for f in tmp_path.iterdir()] == ["prompt.safetensors"]


def test_a_cache_prints_its_size(pair):
    cache = make_prompt_cache(pair[0])
    assert repr(cache) == "[PromptCache(0 tokens, no state)]"
    generate(*pair, PROMPT, max_tokens=2, prompt_cache=cache)
    assert len(repr(cache)) < 80
    assert f"{cache[0].offset} tokens, a state of " in repr(cache)


def test_an_empty_cache_is_saved_too(pair, tmp_path):
    caches.save_prompt_cache(tmp_path / "x", make_prompt_cache(pair[0]))
    assert caches.load_prompt_cache(tmp_path / "x")[0].empty()


def test_what_is_no_cache_is_refused(pair, tmp_path):
    file = tmp_path / "prompt"
    with pytest.raises(StateFormatError, match="prompt"):
        caches.load_prompt_cache(file)
    file.write_bytes(b"anything")
    with pytest.raises(StateFormatError, match="holds no prompt cache"):
        caches.load_prompt_cache(file)
    with file.open("wb") as other:
        np.savez(other, other=np.zeros(3))
    with pytest.raises(StateFormatError, match="holds no prompt cache"):
        caches.load_prompt_cache(file)
    cache = make_prompt_cache(pair[0])
    generate(*pair, [1, 5, 9], max_tokens=4, prompt_cache=cache)
    caches.save_prompt_cache(file, cache)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(StateFormatError, match="holds no prompt cache"):
        caches.load_prompt_cache(file)
    with pytest.raises(StateFormatError, match="cannot be written"):
        caches.save_prompt_cache(tmp_path / "no" / "where", cache)


def test_a_cache_of_another_model_is_refused(pair, tmp_path):
    with npurt.Llama(PATH, kv_type="f32", n_ctx=64) as other:
        cache = make_prompt_cache(other)
        list(generate_step([1, 5, 9], other, max_tokens=2, prompt_cache=cache))
    pair[0].reset()
    with pytest.raises(LayoutError, match="another model"):
        generate(*pair, [7], prompt_cache=cache)


def test_tokens_of_a_cache_are_taken_back(pair, own):
    cache = make_prompt_cache(pair[0])
    list(generate_step([1, 5, 9, 4], pair[0], max_tokens=1, prompt_cache=cache))

    assert caches.can_trim_prompt_cache(cache)
    assert caches.trim_prompt_cache(cache, 2) == 2
    assert cache[0].tokens == (1, 5, 9)
    tokens = [t for t, _ in generate_step([7], pair[0], max_tokens=3, prompt_cache=cache)]
    wanted = [t for t, _ in generate_step([1, 5, 9, 7], pair[0], max_tokens=3)]
    assert tokens == wanted
    assert caches.trim_prompt_cache(cache, 100) == 7
    assert cache[0].empty()


def test_a_stream_that_was_ended_keeps_what_it_wrote(pair):
    cache = make_prompt_cache(pair[0])
    steps = generate_step([1, 5, 9], pair[0], prompt_cache=cache)
    tokens = [next(steps)[0], next(steps)[0]]
    steps.close()
    assert cache[0].tokens == (1, 5, 9, *tokens)

    steps = generate_step([7], pair[0], prompt_cache=cache)
    token, _ = next(steps)
    generate(*pair, [2, 2], max_tokens=1)  # this call ends the stream
    with pytest.raises(SettingError, match="another call used the model"):
        next(steps)
    assert cache[0].tokens == (1, 5, 9, *tokens, 7, token)
    # the snapshot is of this prompt, not of [2, 2]
    assert cache[0].snapshot.tokens[:3] == (1, 5, 9)


# --- Tokenizers -----------------------------------------------------------------------------------


def test_tokenizers_are_those_of_transformers(pair, own):
    tokenizer = pair[1]
    ids = tokenizer.encode("né")

    assert ids == own.tokenize("né")
    assert tokenizer.encode("né", add_special_tokens=False) == ids[1:]
    assert tokenizer.decode(ids) == own.detokenize(ids)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "né"
    assert tokenizer.decode(ids[1]) == own.detokenize(ids[1:2])
    assert tokenizer.bos_token_id == ids[0] == own.tokenizer.bos
    assert tokenizer.eos_token_ids == set(own.tokenizer.eog)
    assert tokenizer.eos_token == own.detokenize([tokenizer.eos_token_id])


def test_a_template_gives_ids_or_text(pair, own):
    tokenizer = pair[1]
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)

    ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)
    own.chat(MESSAGES, max_tokens=1)
    assert tuple(ids) == own.history
    assert own.template.render(MESSAGES) == text
    short = tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    assert text.startswith(short)
    assert len(short) < len(text)
    assert tokenizer.chat_template == own.template.source
    tools = [{"type": "function", "function": {"name": "weather"}}]
    told = tokenizer.apply_chat_template(MESSAGES, tools=tools, tokenize=False)
    assert '{"name": "weather"}' in told  # the template does not read tools


@pytest.mark.parametrize("tokenize", [False, True])
def test_what_a_template_does_not_read_changes_nothing_as_in_transformers(pair, tokenize):
    unset = {"continue_final_message": False, "return_dict": False, "chat_template": None,
             "documents": None, "return_tensors": None, "enable_thinking": False}  # fmt: skip
    options = {"tokenize": tokenize, "add_generation_prompt": True}

    plain = pair[1].apply_chat_template(MESSAGES, **options)

    assert pair[1].apply_chat_template(MESSAGES, **unset, **options) == plain
    for name in ("chat_template", "documents", "return_dict", "return_tensors"):
        with pytest.raises(UnsupportedOp, match=f"does not have {name}="):
            pair[1].apply_chat_template(MESSAGES, **{name: "x"})


def test_an_answer_that_was_begun_goes_on(pair, own):
    tokenizer = pair[1]
    begun = [*MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": "The Hello "}]}]
    whole = tokenizer.apply_chat_template(begun, tokenize=False)

    text = tokenizer.apply_chat_template(begun, tokenize=False, continue_final_message=True)

    assert text.endswith("The Hello")
    assert whole.startswith(text)
    assert len(text) < len(whole)
    ids = tokenizer.apply_chat_template(begun, continue_final_message=True)
    assert ids == tokenizer.encode(text)
    assert tokenizer.apply_chat_template(begun)[: len(ids) - 1] == ids[:-1]
    for messages, prompted in (
        (begun, True),
        ([*MESSAGES, {"role": "user", "content": ""}], False),
    ):
        with pytest.raises(SettingError, match="continue_final_message"):
            tokenizer.apply_chat_template(
                messages, add_generation_prompt=prompted, continue_final_message=True
            )


def test_detokenizers_show_whole_characters(pair):
    detokenizer = pair[1].detokenizer
    ids = pair[1].encode("aé", add_special_tokens=False)
    segments = []
    for token in ids:
        detokenizer.add_token(token)
        segments.append(detokenizer.last_segment)
    detokenizer.finalize()

    assert "".join(segments) == detokenizer.text == "aé"
    assert detokenizer.tokens == ids
    detokenizer.reset()
    assert (detokenizer.text, detokenizer.tokens, detokenizer.last_segment) == ("", [], "")
