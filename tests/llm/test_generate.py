"""Tests of generation: reproducible text, correct ends, and refusal of invalid options."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from npurt.errors import ContextFull, LayoutError, ModelFormatError, SettingError
from npurt.llm.decode.generate import Timing
from npurt.llm.decode.stops import split_at_stop
from npurt.llm.spec.controller import Controller
from tests.llm import tiny
from tests.llm.conftest import FIRST_PADDING, GREEDY, PROMPT, fresh, open_tiny


def chosen(llm):
    """Return the ids that the last generation sampled, except the last id: it is not evaluated."""
    return list(llm.history)[llm.timing.prompt_tokens :]


# --- Equal texts ----------------------------------------------------------------------------------


def test_greedy_text_is_that_of_the_largest_logits(llm):
    fresh(llm, max_tokens=20, **GREEDY)
    ids = list(PROMPT)
    with open_tiny() as other:
        for _ in range(19):
            other.reset()
            logits = other.eval(ids)[-1]
            logits[FIRST_PADDING:] = -np.inf
            ids.append(int(logits.argmax()))

    assert list(llm.history) == ids


def test_greedy_is_the_same_each_time_and_in_another_process_of_loading(llm):
    text = fresh(llm, max_tokens=30, **GREEDY)

    assert fresh(llm, max_tokens=30, **GREEDY) == text
    assert fresh(llm, max_tokens=30, seed=5, **GREEDY) == text
    with open_tiny(n_threads=1, n_batch=3) as other:
        assert other.generate(PROMPT, max_tokens=30, **GREEDY) == text


def test_a_seed_gives_its_text_again_and_another_gives_another(llm):
    texts = [fresh(llm, max_tokens=30, seed=seed) for seed in (1, 1, 2)]

    assert texts[0] == texts[1] != texts[2]


def test_the_seed_of_a_model_is_that_of_its_generations(llm):
    with open_tiny(seed=7) as seeded:
        texts = [fresh(seeded, max_tokens=30) for _ in range(2)]

    assert texts[0] == texts[1] == fresh(llm, max_tokens=30, seed=7)


def test_without_a_seed_texts_differ(llm):
    texts = {fresh(llm, max_tokens=30, temperature=2.0) for _ in range(4)}

    assert len(texts) > 1


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), count=st.integers(0, 25), temperature=st.sampled_from([0, 1.5]))
def test_streamed_pieces_are_the_whole_text(llm, seed, count, temperature):
    options = {"seed": seed, "max_tokens": count, "temperature": temperature}

    pieces = list(fresh(llm, stream=True, **options))

    assert "".join(pieces) == fresh(llm, **options)
    assert all(pieces)


def test_text_prompts_are_tokenised_with_bos(llm):
    text = fresh(llm, "Hello world", max_tokens=8, **GREEDY)

    assert llm.history[: llm.timing.prompt_tokens] == tuple(llm.tokenize("Hello world"))
    assert llm.history[0] == llm.tokenizer.bos
    assert fresh(llm, llm.tokenize("Hello world"), max_tokens=8, **GREEDY) == text


def test_minus_one_is_another_seed_each_time(llm):
    with open_tiny(seed=7) as seeded, open_tiny(seed=-1) as unseeded:
        options = {"max_tokens": 30, "temperature": 2.0}
        for each, seed in ((seeded, -1), (unseeded, None), (unseeded, -1)):
            assert len({fresh(each, seed=seed, **options) for _ in range(4)}) > 1
    assert unseeded.seed is None


# --- Ends of texts --------------------------------------------------------------------------------


def test_max_tokens_is_how_many_are_sampled(llm):
    for count in (0, 1, 2, 9):
        fresh(llm, max_tokens=count, **GREEDY)
        assert llm.timing.generated_tokens == count
        assert llm.timing.finish == "length"
    assert fresh(llm, max_tokens=0) == ""
    assert llm.history == ()


def test_minus_one_is_no_limit(llm):
    for limit in (None, -1, np.int64(-1)):
        fresh(llm, [5] * 100, max_tokens=limit, stop=None, **GREEDY)
        assert llm.timing.finish == "context"
        assert llm.timing.generated_tokens == 29  # of 128 positions; the last token needs none


def forced(llm, monkeypatch, tokens):
    """Make the model's sampler return *tokens*, one after another."""
    queue = iter(tokens)
    monkeypatch.setattr("npurt.llm.decode.text.TokenSampler.sample", lambda *_: next(queue))


@pytest.mark.parametrize("name", ["tokenizer.ggml.eos_token_id", None])
def test_the_end_token_ends_the_text_and_is_no_part_of_it(llm, monkeypatch, name):
    end = llm.tokenizer.eos if name else next(iter(llm.tokenizer.eog - {llm.tokenizer.eos}))
    word = llm.tokenize("abc", add_bos=False)
    forced(llm, monkeypatch, [*word, end, *word])

    assert fresh(llm, max_tokens=50) == "abc"
    assert llm.timing.finish == "end"
    assert llm.timing.generated_tokens == len(word) + 1


def test_control_tokens_are_not_shown(llm, monkeypatch):
    a, b = (llm.tokenize(letter, add_bos=False)[0] for letter in "ab")
    forced(llm, monkeypatch, [a, llm.tokenizer.bos, b])

    assert fresh(llm, max_tokens=3) == "ab"


TEXT = "one two three four"


@pytest.mark.parametrize(
    ("stop", "kept"),
    [
        ("three", "one two "),
        (" th", "one two"),
        ("o t", "one tw"),
        ("one", ""),
        ("four", "one two three "),
        (["xyz", "ree f", "four"], "one two th"),
        ("four five", TEXT),
        ("xyz", TEXT),
        ([], TEXT),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_text_ends_before_a_stop_text_wherever_tokens_begin(llm, monkeypatch, stop, kept, stream):
    """The tokens are single characters: every stop text is split across several."""
    forced(llm, monkeypatch, [llm.tokenize(letter, add_bos=False)[0] for letter in TEXT])

    given = fresh(llm, max_tokens=len(TEXT), stop=stop, stream=stream)

    assert ("".join(given) if stream else given) == kept
    assert llm.timing.finish == ("length" if kept == TEXT else "stop")


@pytest.mark.parametrize("stop", ["é", "né", "\ufffd"])
def test_a_stop_text_is_found_among_bytes_that_are_no_characters_yet(llm, monkeypatch, stop):
    """``é`` is two tokens here; the first of them alone decodes to U+FFFD."""
    ids = llm.tokenize("né", add_bos=False)
    assert len(ids) == 3
    forced(llm, monkeypatch, ids if stop != "\ufffd" else ids[:2])

    assert fresh(llm, max_tokens=3 if stop != "\ufffd" else 2, stop=stop) == "né".split(stop)[0][:1]
    assert llm.timing.finish == "stop"


texts = st.text("ab", max_size=8)


@given(st.lists(texts, max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_split_at_stop_shows_what_no_stop_text_can_reach_and_nothing_after_one(pieces, stops):
    shown, held, stopped = "", "", False
    for piece in pieces:
        text, held, stopped = split_at_stop(held + piece, stops)
        shown += text
        if stopped:
            break
        assert not any(stop in shown for stop in stops)
    whole = "".join(pieces)
    ends = [whole.find(stop) + len(stop) for stop in stops if stop in whole]

    assert stopped == bool(ends)
    if stopped:
        assert any(whole.startswith(shown + stop) for stop in stops)
    else:
        assert shown + held == whole
        assert any(stop.startswith(held) for stop in stops) or not held


@pytest.mark.parametrize("model", ["llama3", "qwen35"])
def test_draft_tokens_beyond_a_stop_text_leave_no_trace(model):
    """The context is that of plain decoding, wherever in a draft the stop text ends."""
    path = tiny.path(model, "q8_0")
    ids = tiny.ids(model, 12)
    with open_tiny(model) as plain, open_tiny(model, draft=path) as drafted:
        drafted.speculator.controller = Controller(8, fixed=True)
        for count in range(2, 12):
            stop = fresh(plain, ids, max_tokens=count, **GREEDY)[-2:]
            fresh(plain, ids, max_tokens=20, stop=stop, **GREEDY)
            fresh(drafted, ids, max_tokens=20, stop=stop, **GREEDY)

            assert plain.timing.finish == drafted.timing.finish == "stop"
            assert drafted.history == plain.history
            np.testing.assert_array_equal(drafted.eval([5]), plain.eval([5]))
        assert drafted.speculator.controller.speculation.accepted > 0


def test_a_prompt_that_does_not_fit_is_refused_and_the_cache_kept(llm):
    fresh(llm, max_tokens=4)
    before = llm.history

    for count in (129, 1000):
        with pytest.raises(ContextFull, match="do not fit"):
            llm.generate([*PROMPT, *itertools.repeat(5, count - len(PROMPT))])
    assert llm.history == before[: len(PROMPT)]  # only the common prefix remains
    with pytest.raises(ContextFull):
        llm.eval([1] * 200)


def test_a_full_context_ends_the_text(llm):
    fresh(llm, [5] * 120, **GREEDY)

    assert llm.timing.finish == "context"
    assert llm.n_tokens == 128
    assert llm.timing.generated_tokens == 9  # the last token needs no position


def test_a_prompt_that_fills_the_context_still_has_a_next_token(llm):
    fresh(llm, [5] * 128, **GREEDY)

    assert (llm.timing.generated_tokens, llm.timing.finish) == (1, "context")


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([608], "token id 608 is not in the vocabulary of 608"),
        ([1, -1], "token id -1"),
        ([2**70], "token id"),
        ([1.5], "integers"),
        (["1"], "integers"),
        ("12", "integers"),
        ([None], "integers"),
        (np.ones((2, 2), int), "integers"),
    ],
)
def test_ids_that_are_none_are_refused_and_nothing_is_evaluated(llm, ids, said):
    llm.reset()
    for call in (llm.eval, llm.eval_last):
        with pytest.raises(LayoutError, match=said):
            call(ids)
    if not isinstance(ids, str):
        with pytest.raises(LayoutError, match=said):
            llm.generate(ids)
    assert llm.n_tokens == 0


def test_ids_may_be_numpys(llm):
    llm.reset()
    wanted = llm.eval(PROMPT)
    for dtype in (np.int32, np.uint16, np.int64):
        llm.reset()
        np.testing.assert_array_equal(llm.eval(np.array(PROMPT, dtype)), wanted)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_tokens": -2}, "max_tokens is -2"),
        ({"stop": ""}, "stop text is empty"),
        ({"stop": ["a", ""]}, "stop text is empty"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 2.0}, "top_p"),
        ({"seed": -3}, "seed"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_runs(llm, options, said):
    for stream in (False, True):
        with pytest.raises(SettingError, match=said):
            llm.generate(PROMPT, stream=stream, **options)


def test_an_empty_prompt_is_refused():
    with open_tiny("qwen2") as llm:  # qwen2 has no BOS
        for prompt in ("", []):
            with pytest.raises(LayoutError, match="prompt is empty"):
                llm.generate(prompt)
        with pytest.raises(LayoutError, match="no token"):
            llm.eval_last([])
        assert llm.eval([]).shape == (0, 608)


@pytest.mark.parametrize(
    "options",
    [
        {"n_batch": 0},
        {"n_batch": 513},
        {"n_ctx": -1},
        {"n_ctx": 1 << 23},
        {"kv_type": "q8_0"},
        {"n_threads": -1},
        {"n_threads": 1000},
        {"verify": "perhaps"},
    ],
)
def test_a_model_cannot_be_opened_with_options_that_make_no_sense(options):
    with pytest.raises(SettingError):
        npurt.Llama(tiny.path(), **options)


def test_zero_positions_are_those_of_the_training():
    with open_tiny(n_ctx=0) as whole, open_tiny(n_ctx=None) as usual:
        assert whole.n_ctx == usual.n_ctx == whole.config.n_context == 512


def test_the_usual_context_is_shorter_than_a_long_training(tmp_path):
    path = tmp_path / "long.gguf"
    file = tiny.read(tiny.path()).with_key("llama.context_length", 4, 9000)
    with npurt.Llama(tiny.write(file, tmp_path, path.name)) as llm:
        assert llm.n_ctx == 4096
    with npurt.Llama(path, n_ctx=0) as llm:
        assert llm.n_ctx == 9000


def test_more_positions_than_the_training_had_are_warned_of():
    with pytest.warns(UserWarning, match="513 tokens exceeds the 512") as caught:
        open_tiny(n_ctx=513).close()
    assert [str(warning.filename) for warning in caught] == [tiny_opener()]
    open_tiny(n_ctx=512).close()  # a warning would be an error


def tiny_opener():
    """Return the file that calls `Llama` in `open_tiny`, as the warning names it."""
    return open_tiny.__code__.co_filename


def test_a_closed_model_says_so(llm):
    with open_tiny() as closed:
        stream = closed.generate(PROMPT, max_tokens=5, stream=True, **GREEDY)
        next(stream)
    closed.close()

    for call in (
        lambda: list(stream),
        lambda: closed.eval(PROMPT),
        lambda: closed.eval_last(PROMPT),
        lambda: closed.generate(PROMPT),
    ):
        with pytest.raises(SettingError, match="closed"):
            call()
    assert "of MACs on cpu" in closed.report().line()


def test_padding_is_never_sampled(llm):
    """The temperature makes all 608 tokens almost equally likely; 8 of them are padding."""
    options = {"temperature": 1e6, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    seen = set()
    for seed in range(30):
        fresh(llm, max_tokens=100, seed=seed, **options)
        seen |= set(chosen(llm))

    assert len(seen) > 400
    assert max(seen) < FIRST_PADDING
    assert llm.tokenizer.never_sampled == frozenset(range(FIRST_PADDING, 608))


# --- chat() and timing ----------------------------------------------------------------------------

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
]


def test_chat_continues_what_the_template_writes(llm):
    prompt = llm.template.render(CONVERSATION)
    assert prompt.endswith("assistant\n")
    llm.reset()

    answer = llm.chat(CONVERSATION, max_tokens=10, **GREEDY)

    ids = llm.tokenize(prompt)
    assert ids.count(llm.tokenizer.bos) == 1
    assert fresh(llm, ids, max_tokens=10, **GREEDY) == answer
    assert "".join(llm.chat(CONVERSATION, max_tokens=10, stream=True, **GREEDY)) == answer


def test_a_template_that_writes_bos_itself_is_not_given_another():
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with open_tiny(chat_template=template) as llm:
        llm.chat(CONVERSATION, max_tokens=1)

        assert llm.history == tuple(llm.tokenize("Be brief.Hello"))


def test_a_second_turn_reuses_the_first(llm):
    llm.reset()
    answer = llm.chat(CONVERSATION, max_tokens=5, **GREEDY)
    first = llm.timing.prompt_tokens
    turns = [{"role": "assistant", "content": answer}, {"role": "user", "content": "And now?"}]
    llm.chat([*CONVERSATION, *turns], max_tokens=1, **GREEDY)

    assert llm.timing.reused_tokens >= first - 1


def test_a_file_without_a_template_has_no_chat(tmp_path):
    file = tiny.without_key(tiny.read(tiny.path("llama3", "q8_0")), "tokenizer.chat_template")
    with npurt.Llama(tiny.write(file, tmp_path)) as llm:
        with pytest.raises(ModelFormatError, match="no chat template"):
            llm.chat(CONVERSATION)
        assert llm.generate("Hello", max_tokens=1) is not None


def test_timing_counts_tokens_and_seconds(llm):
    fresh(llm, max_tokens=11, temperature=0)
    timing = llm.timing

    assert (timing.prompt_tokens, timing.reused_tokens, timing.generated_tokens) == (12, 0, 11)
    assert timing.prefill_seconds > 0
    assert timing.prefill_rate == 12 / timing.prefill_seconds
    assert timing.decode_rate == 10 / timing.decode_seconds
    assert timing.line() == (
        f"prefill 12 tokens, {timing.prefill_rate:.1f} tokens/s; "
        f"decode 11 tokens, {timing.decode_rate:.1f} tokens/s"
    )


@pytest.mark.parametrize("count", [0, 1])
def test_timing_of_next_to_nothing_has_no_rate(count):
    timing = Timing(prompt_tokens=1, reused_tokens=1, generated_tokens=count)

    decode = f"decode {count} tokens, 0.0 tokens/s"
    assert timing.line() == f"prefill 0 tokens, 0.0 tokens/s; {decode}"
