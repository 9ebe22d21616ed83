"""Generation: the same text again, ended where it should be, whatever the cache held before."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from npurt.errors import ContextFull, LayoutError, ModelFormatError, SettingError
from npurt.llm.generate import Timing, cut
from tests.llm import tiny

GREEDY = {"temperature": 0.0}
PROMPT = tiny.ids("llama3", 12)
FIRST_PADDING = 600  # ids from here on are padding rows of the tiny vocabularies


def open_tiny(model="llama3", kind="q8_0", **options):
    return npurt.Llama(tiny.path(model, kind), **({"n_ctx": 128} | options))


@pytest.fixture(scope="module")
def llm():
    with open_tiny() as model:
        yield model


def fresh(llm, prompt=PROMPT, **options):
    """Generate from an empty cache."""
    llm.reset()
    return llm.generate(prompt, **options)


def chosen(llm):
    """Return the ids that the last generation sampled, but the last, which is not evaluated."""
    return list(llm.history)[llm.timing.prompt_tokens :]


# --- The same text --------------------------------------------------------------------------------


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


# --- Where it ends --------------------------------------------------------------------------------


def test_max_tokens_is_how_many_are_sampled(llm):
    for count in (0, 1, 2, 9):
        fresh(llm, max_tokens=count, **GREEDY)
        assert llm.timing.generated_tokens == count
        assert llm.timing.finish == "length"
    assert fresh(llm, max_tokens=0) == ""
    assert llm.history == ()


def forced(llm, monkeypatch, tokens):
    """Let the model's sampler choose *tokens*, one after another."""
    queue = iter(tokens)
    monkeypatch.setattr("npurt.llm.model.Sampler.sample", lambda *_: next(queue))


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
    """``é`` is two tokens here; cut off after the first it is U+FFFD."""
    ids = llm.tokenize("né", add_bos=False)
    assert len(ids) == 3
    forced(llm, monkeypatch, ids if stop != "\ufffd" else ids[:2])

    assert fresh(llm, max_tokens=3 if stop != "\ufffd" else 2, stop=stop) == "né".split(stop)[0][:1]
    assert llm.timing.finish == "stop"


texts = st.text("ab", max_size=8)


@given(st.lists(texts, max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_cut_shows_what_no_stop_text_can_reach_and_nothing_after_one(pieces, stops):
    shown, held, stopped = "", "", False
    for piece in pieces:
        text, held, stopped = cut(held + piece, stops)
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


def test_a_prompt_that_does_not_fit_is_refused_and_the_cache_kept(llm):
    fresh(llm, max_tokens=4)
    before = llm.history

    for count in (129, 1000):
        with pytest.raises(ContextFull, match="do not fit"):
            llm.generate([*PROMPT, *itertools.repeat(5, count - len(PROMPT))])
    assert llm.history == before[: len(PROMPT)]  # what the prompt shares is all that is kept
    with pytest.raises(ContextFull):
        llm.eval([1] * 200)


def test_a_full_context_ends_the_text(llm):
    fresh(llm, [5] * 120, **GREEDY)

    assert llm.timing.finish == "context"
    assert llm.n_tokens == 128
    assert llm.timing.generated_tokens == 9  # the last one needs no room


def test_a_prompt_that_fills_the_context_still_has_a_next_token(llm):
    fresh(llm, [5] * 128, **GREEDY)

    assert (llm.timing.generated_tokens, llm.timing.finish) == (1, "context")


# --- What the cache holds -------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    before=st.lists(st.integers(0, 599), min_size=1, max_size=30),
    shared=st.integers(0, 30),
    tail=st.lists(st.integers(0, 599), min_size=1, max_size=10),
)
def test_a_prefix_found_in_the_cache_gives_the_text_of_a_fresh_evaluation(
    llm, before, shared, tail
):
    prompt = [*before[:shared], *tail]
    wanted = fresh(llm, prompt, max_tokens=6, **GREEDY)
    fresh(llm, before, max_tokens=3)
    had = llm.history

    assert llm.generate(prompt, max_tokens=6, **GREEDY) == wanted

    both = zip(had, prompt[:-1], strict=False)
    assert llm.timing.reused_tokens == len(list(itertools.takewhile(lambda p: p[0] == p[1], both)))
    assert llm.timing.prompt_tokens == len(prompt)


def test_the_same_prompt_again_evaluates_its_last_token_only(llm):
    fresh(llm, max_tokens=5, **GREEDY)
    llm.generate(PROMPT, max_tokens=5, **GREEDY)

    assert llm.timing.reused_tokens == len(PROMPT) - 1


def test_reset_and_rewind_forget(llm):
    llm.reset()
    logits = llm.eval(PROMPT)
    assert (llm.n_tokens, llm.history) == (len(PROMPT), tuple(PROMPT))
    llm.rewind(5)
    assert (llm.n_tokens, llm.history) == (5, tuple(PROMPT[:5]))
    llm.rewind(50)
    assert llm.n_tokens == 5

    np.testing.assert_array_equal(llm.eval(PROMPT[5:]), logits[5:])
    llm.reset()
    assert (llm.n_tokens, llm.history) == (0, ())
    with pytest.raises(LayoutError, match="-1 tokens"):
        llm.rewind(-1)


def test_two_generations_at_once_are_refused_not_mixed(llm):
    suspended = []  # has evaluated as many tokens as the other
    for other in (
        lambda: list(llm.generate(PROMPT[3:], max_tokens=2, stream=True)),
        lambda: list(llm.generate(PROMPT, max_tokens=3, stream=True)),
        lambda: suspended.append(llm.generate([5] * 12, stream=True)) or next(suspended[0]),
        lambda: llm.eval([7]),
        llm.reset,
    ):
        llm.reset()
        first = llm.generate(PROMPT, max_tokens=20, stream=True, **GREEDY)
        next(first)
        other()
        with pytest.raises(SettingError, match="something else used the model"):
            list(first)


def test_a_generation_that_was_made_and_not_begun_disturbs_nobody(llm):
    wanted = fresh(llm, max_tokens=10, **GREEDY)
    llm.reset()
    first = llm.generate(PROMPT, max_tokens=10, stream=True, **GREEDY)
    begun = [next(first)]
    second = llm.generate(PROMPT, max_tokens=10, stream=True, **GREEDY)

    assert "".join([*begun, *first]) == wanted
    assert "".join(second) == wanted


# --- Context shift --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory):
    """Return files of one layer, in which keys and values are those of the token alone.

    So forgetting the first tokens must leave exactly the cache of a text without them.
    """
    folder = tmp_path_factory.mktemp("one_layer")
    files = {}
    for model in ("llama3", "qwen2"):
        file = tiny.read(tiny.path(model, "f32"))
        file = tiny.without_tensors(file, lambda name: name.startswith(("blk.1.", "blk.2.")))
        arch = "qwen2" if model == "qwen2" else "llama"
        file = file.with_key(f"{arch}.block_count", 4, 1)
        files[model] = tiny.write(file, folder, f"{model}.gguf")
        yarn = [("type", 8, "yarn"), ("factor", 6, 4.0), ("original_context_length", 4, 32)]
        for name, kind, value in yarn:
            file = file.with_key(f"{arch}.rope.scaling.{name}", kind, value)
        files[f"{model}-yarn"] = tiny.write(file, folder, f"{model}-yarn.gguf")
    return files


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("model", ["llama3", "qwen2", "llama3-yarn", "qwen2-yarn"])
def test_a_shifted_context_is_that_of_the_tokens_that_are_left(one_layer, model, kv_type):
    """Keys are rotated back by float32 tables, which costs less than evaluation itself does.

    An f16 cache rounds them again at each of at most five shifts, by 2^-22 / 3 of their squares:
    4e-7 in all, of which logits may make a few times as much.
    """
    ids = tiny.ids("llama3", 100)
    options = {"n_ctx": 40, "kv_type": kv_type, "verify": "off"}
    with (
        npurt.Llama(one_layer[model], context_shift=True, **options) as shifting,
        npurt.Llama(one_layer[model], **options) as fixed,
    ):
        for token in ids:
            y = shifting.eval_last([token]).copy()
            left = shifting.history
            fixed.reset()
            wanted = fixed.eval(left)[-1]
            error = ((y - wanted) ** 2).sum() / (wanted**2).sum()
            assert error < (1e-11 if kv_type == "f32" else 4e-6)
        keep = 1 if shifting.tokenizer.add_bos else 0
        assert left[:keep] == tuple(ids[:keep])
        assert left[keep:] == tuple(ids[100 - len(left) + keep :])
        assert 20 <= len(left) <= 40


def test_generation_goes_on_when_old_tokens_may_be_forgotten():
    with open_tiny(n_ctx=32, context_shift=True) as llm:
        text = llm.generate(PROMPT, max_tokens=100, seed=1, temperature=3.0)

        assert llm.timing.finish in ("length", "end")
        assert llm.timing.generated_tokens > 32 or llm.timing.finish == "end"
        assert llm.n_tokens <= 32
        assert llm.history[0] == PROMPT[0]
        assert text


def test_a_shift_never_makes_room_for_more_than_half_a_context():
    with open_tiny(n_ctx=16, context_shift=True) as llm:
        llm.eval(PROMPT)
        with pytest.raises(ContextFull):
            llm.eval([1] * 9)
        assert llm.n_tokens == 12
        llm.eval([1] * 8)
        assert llm.n_tokens <= 16
        assert llm.history[-8:] == (1,) * 8


@pytest.mark.parametrize("n_ctx", [1, 2, 3, 5])
def test_the_smallest_contexts_shift_or_end(n_ctx):
    with open_tiny(n_ctx=n_ctx, context_shift=True) as llm:
        llm.generate([5], max_tokens=20, seed=0)
        if n_ctx == 1:
            assert llm.timing.finish == "context"
        else:
            assert llm.timing.generated_tokens == 20 or llm.timing.finish == "end"
        assert llm.n_tokens <= n_ctx


# --- What is refused ------------------------------------------------------------------------------


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
        ({"max_tokens": -1}, "max_tokens is -1"),
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
    with open_tiny("qwen2") as llm:  # which has no BOS to begin with
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


def test_a_closed_model_says_so(llm):
    with open_tiny() as closed:
        stream = closed.generate(PROMPT, max_tokens=5, stream=True)
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
    """With a temperature that makes all 608 tokens alike, 8 of them padding."""
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
    llm.chat([*CONVERSATION, *turns], max_tokens=5, **GREEDY)

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
