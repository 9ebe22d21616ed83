"""Tests of a generation's context: evaluated tokens are reused, and the oldest are dropped."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from npurt.errors import ContextFull, LayoutError, SettingError
from tests.llm import tiny
from tests.llm.conftest import GREEDY, PROMPT, fresh, open_tiny

# --- Contents of the cache ------------------------------------------------------------------------


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


def test_a_second_generation_runs_while_a_stream_is_open_and_ends_it(llm):
    wanted = fresh(llm, PROMPT[3:], max_tokens=8, **GREEDY)
    stream = llm.generate(PROMPT, max_tokens=20, stream=True, **GREEDY)
    next(stream)

    assert llm.generate(PROMPT[3:], max_tokens=8, **GREEDY) == wanted
    with pytest.raises(SettingError, match="another call used the model"):
        next(stream)
    assert next(stream, None) is None  # the generation has ended


def test_two_generations_at_once_are_refused_not_mixed(llm):
    suspended = []  # a stream that has evaluated as many tokens as `first`
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
        with pytest.raises(SettingError, match="another call used the model"):
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
    """Return model files with one layer, so that keys and values depend on one token each.

    After the first tokens are dropped, the cache must equal that of a sequence without them.
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
    """Keys are rotated back by float32 tables, whose error is below that of the evaluation.

    An f16 cache rounds keys again at each of at most five shifts, by 2^-22 / 3 of their squares:
    4e-7 in all.  The error of the logits may be a few times as large.
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


@pytest.mark.parametrize("way", ["as it is", "restored", "loaded"])
def test_what_a_shift_moved_is_not_reused(tmp_path, way):
    """Shifted keys and values are not reused, because they depend on dropped tokens."""
    with open_tiny(n_ctx=32, context_shift=True) as llm:
        fresh(llm, max_tokens=60, **GREEDY)
        if way == "restored":
            snapshot = llm.snapshot()
            llm.reset()
            llm.restore(snapshot)
        elif way == "loaded":
            llm.save_state(tmp_path / "state")
            llm.reset()
            llm.load_state(tmp_path / "state")
        prompt = [*llm.history[:20], 7]
        llm.generate(prompt, max_tokens=3, **GREEDY)
        kept = 1 if llm.tokenizer.add_bos else 0

        assert llm.timing.reused_tokens == kept
        again = llm.eval_last([5]).copy()
        llm.generate(prompt, max_tokens=3, **GREEDY)
        assert llm.timing.reused_tokens == len(prompt) - 1  # evaluated after the shift
        fresh(llm, prompt, max_tokens=3, **GREEDY)
        np.testing.assert_array_equal(llm.eval_last([5]), again)


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
