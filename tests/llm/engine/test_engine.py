"""Tests of `Engine`: requests from any thread, their events, ends and errors."""

import gc
import itertools
import threading
import time
import weakref

import numpy as np
import pytest

import npurt
from npurt.errors import ContextFull, LayoutError, SettingError
from npurt.llm.engine.events import Event
from tests.limits import HANG_SECONDS, eventually
from tests.llm import tiny

PATH = tiny.path("llama3", "q8_0")
IDS = tiny.ids("llama3")
OPTIONS = {"n_ctx": 128, "n_batch": 32, "n_threads": 2, "progress": False}
GREEDY = {"temperature": 0.0}


def open_engine(path=PATH, device="cpu", **options):
    return npurt.Engine(path, device, **(OPTIONS | {"max_sequences": 4} | options))


@pytest.fixture(scope="module")
def engine():
    with open_engine() as made:
        yield made


@pytest.fixture(scope="module")
def llm():
    with npurt.Llama(PATH, **OPTIONS) as made:
        yield made


def alone(llm, prompt, **options):
    llm.reset()
    return llm.generate(prompt, **options)


# --- Results of requests --------------------------------------------------------------------------


def test_texts_at_once_are_those_alone(engine, llm):
    prompts = [IDS[i : i + 9] for i in range(8)]
    requests = [engine.submit(p, max_tokens=12, temperature=1.0, seed=i)
                for i, p in enumerate(prompts)]  # fmt: skip

    texts = [request.text() for request in requests]

    wanted = [alone(llm, p, max_tokens=12, temperature=1.0, seed=i) for i, p in enumerate(prompts)]
    assert texts == wanted


def test_events_say_tokens_text_and_usage(engine, llm):
    request = engine.submit(IDS[:40], GREEDY | {"top_k": 5}, max_tokens=7, logprobs=3)
    events = list(request)

    result = request.result()
    assert all(isinstance(event, Event) for event in events)
    assert [event.finish for event in events[:-1]] == [""] * (len(events) - 1)
    assert events[-1].finish == result.finish == "length"
    assert result.text == alone(llm, IDS[:40], max_tokens=7, logprobs=3, **GREEDY)
    assert result.logprobs == tuple(llm.timing.logprobs)
    assert result.usage.generated == len(result.tokens) == 7
    assert result.usage.prompt == 40
    assert events[-1].read == 40
    assert list(request) == []


def test_a_text_goes_on_where_another_engine_left_it(engine):
    """The resumed sequence has the same random numbers, limits and penalties."""
    options = {"max_tokens": 12, "temperature": 1.0, "seed": 3, "repeat_penalty": 1.2}
    whole = engine.submit(IDS[:6], **options).result()

    rest = engine.submit([*IDS[:6], *whole.tokens[:5]], prompt_tokens=6, **options).result()

    assert rest.tokens == whole.tokens[5:]
    assert (rest.finish, rest.usage.prompt) == (whole.finish, 6)


def test_stops_end_a_text(engine, llm):
    text = alone(llm, IDS[:12], max_tokens=20, **GREEDY)
    stop = text[3:6]

    found = engine.submit(IDS[:12], max_tokens=20, stop=stop, **GREEDY).result()

    assert (found.text, found.finish) == (text[: text.index(stop)], "stop")
    first = engine.submit(IDS[:12], max_tokens=20, stop=found.tokens[0], **GREEDY).result()
    assert (first.text, first.finish, first.tokens) == ("", "stop", ())


@pytest.mark.parametrize(("count", "finish"), [(0, "length"), (200, "context")])
def test_limits_end_a_text(engine, llm, count, finish):
    bias = {token: float("-inf") for token in llm.tokenizer.eog}
    options = {"max_tokens": count, "logit_bias": bias} | GREEDY

    found = engine.submit(IDS[:100], **options).result()

    assert (found.text, found.finish) == (alone(llm, IDS[:100], **options), finish)


def logprobs_of(llm, ids):
    """Return the log probability of each id after the first, given the ids before it."""
    llm.reset()
    found = []
    for before, id in itertools.pairwise(ids):
        logits = llm.eval([before])[-1].astype(np.float64)
        found.append(logits[id] - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
    return found


@pytest.mark.parametrize("count", [0, 5])
def test_log_probabilities_of_the_prompt(engine, llm, count):
    engine.submit(IDS[:40], max_tokens=1).result()  # caches the prompt
    asked = [
        engine.submit(IDS[:n], GREEDY, max_tokens=count, logprobs=2, prompt_logprobs=True)
        for n in (40, 17, 1)
    ]
    for request, n in zip(asked, (40, 17, 1), strict=True):
        result = request.result()
        assert [each.token for each in result.prompt_logprobs] == IDS[1:n]
        wanted = logprobs_of(llm, IDS[:n])
        assert [each.logprob for each in result.prompt_logprobs] == pytest.approx(wanted, abs=1e-9)
        assert all(len(each.top) == 2 for each in result.prompt_logprobs)
        assert result.text == alone(llm, IDS[:n], max_tokens=count, temperature=0.0)
        assert result.finish == "length"
        assert len(result.logprobs) == count


def test_chat_uses_the_template(engine, llm):
    messages = [{"role": "user", "content": "Hello"}]
    options = {"max_tokens": 5, "temperature": 0.0}
    with open_engine(chat_template="chatml") as other:
        ids = other.llm.apply_chat_template(messages)
        assert other.chat(messages, **options).text() == alone(llm, ids, **options)


def test_a_request_without_text_has_the_same_tokens(engine):
    asked = GREEDY | {"max_tokens": 7, "logprobs": 2}
    usual = engine.submit(IDS[:9], **asked).result()

    found = engine.submit(IDS[:9], detokenize=False, **asked).result()

    assert (found.tokens, found.logprobs) == (usual.tokens, usual.logprobs)
    assert (found.text, found.finish) == ("", usual.finish)
    assert engine.submit(IDS[:9], stop=list(usual.tokens[3:4]), detokenize=False).result()
    with pytest.raises(SettingError, match=r"stop text .* is given without detokenize"):
        engine.submit(IDS[:9], stop=["x", 5], detokenize=False)


@pytest.mark.parametrize("prompt", ["Hello", [*IDS[:9]]], ids=["text", "ids"])
@pytest.mark.parametrize("count", [0, 7])
def test_echo_begins_with_the_prompt(engine, llm, prompt, count):
    """As in `Llama.generate`, a stop text in the prompt does not end the generation."""
    asked = GREEDY | {"max_tokens": count, "stop": llm.detokenize(IDS[1:2]), "logprobs": 2}

    found = engine.submit(prompt, echo=True, **asked).result()

    assert found.text == alone(llm, prompt, echo=True, **asked)
    assert len(found.logprobs) == len(found.tokens) <= count
    plain = engine.submit(prompt, echo=None, **asked).result()
    assert found.text.endswith(plain.text)
    assert found.tokens == plain.tokens


def test_several_texts_of_a_prompt_are_those_of_llama(engine, llm):
    """Each text has the seed of the previous text plus one; `submit` returns a list of requests."""
    asked = {"max_tokens": 7, "temperature": 2.0, "seed": 5, "n": 3}

    found = engine.submit(IDS[:9], echo=True, **asked)

    assert [request.text() for request in found] == alone(llm, IDS[:9], echo=True, **asked)
    messages = [{"role": "user", "content": "Hello"}]
    answers = [request.text() for request in engine.chat(messages, **asked)]
    assert answers == llm.chat(messages, **asked)
    assert engine.submit(IDS[:9], n=None, max_tokens=0).text() == ""
    with pytest.raises(SettingError, match="n is 0"):
        engine.submit(IDS[:9], n=0)


# --- Errors and ends ------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_at_once(engine):
    with pytest.raises(ContextFull, match="129 tokens does not fit 128"):
        engine.submit([1] * 129)
    with pytest.raises(LayoutError, match="not in the vocabulary"):
        engine.submit([10**6])
    with pytest.raises(LayoutError, match="prompt is empty"):
        engine.submit([])
    with pytest.raises(SettingError, match="temperature"):
        engine.submit([1], {"temperature": -1})
    with pytest.raises(SettingError, match="stop text"):
        engine.submit([1], stop=[b"bytes"])
    with pytest.raises(TypeError, match="no_such_option"):
        engine.submit([1], no_such_option=1)


def test_an_error_in_one_request_ends_that_one_alone(engine, llm):
    def raises(ids, logits):
        if len(ids) == 12:
            raise ZeroDivisionError("of the caller")
        return logits

    good = [engine.submit(IDS[i : i + 9], max_tokens=15, **GREEDY) for i in range(3)]
    bad = engine.submit(IDS[:9], max_tokens=15, logits_processor=raises, **GREEDY)

    with pytest.raises(ZeroDivisionError, match="of the caller"):
        bad.text()
    assert len(bad._taken) == 4  # three events, then the error
    for i, request in enumerate(good):
        assert request.text() == alone(llm, IDS[i : i + 9], max_tokens=15, **GREEDY)


def test_a_request_can_be_cancelled(engine):
    slow = threading.Event()

    def waits(ids, logits):
        slow.wait(HANG_SECONDS)
        return logits

    other = engine.submit(IDS[:5], max_tokens=3, **GREEDY)
    request = engine.submit(IDS[:9], max_tokens=100, logits_processor=waits)
    request.cancel()
    slow.set()

    assert request.result().finish == "cancelled"
    assert len(request.result().tokens) <= 2
    assert other.result().finish in ("length", "end")
    request.cancel()  # a second call has no effect
    assert engine.stats().running == 0


def test_a_deadline_ends_a_text(engine):
    wanted = engine.submit(IDS[:9], max_tokens=4, ignore_eos=True).result()
    late = engine.submit(IDS[:9], deadline=0.0)

    assert late.result().finish == "deadline"
    assert late.result().tokens == ()
    assert wanted.usage.generated == 4


def test_the_time_of_a_request_does_not_include_the_queue():
    seen = []

    def told(events):
        seen.extend((time.monotonic(), event) for event in events)

    with open_engine(max_sequences=1, on_step=told) as engine:
        first = engine.submit(IDS[:9], max_tokens=9, ignore_eos=True)
        second = engine.submit(IDS[:9], max_tokens=9, ignore_eos=True)
        assert eventually(lambda: sum(event.finish != "" for _, event in seen) == 2)
    ended = next(now for now, event in seen if event.id == first.id and event.finish)
    later = [(now, event) for now, event in seen if event.id == second.id]

    assert all(now - event.seconds >= ended for now, event in later)
    spent = [event.seconds for _, event in later]
    assert spent == sorted(spent)
    assert spent[0] > 0


def test_priority_comes_first():
    order = []
    with open_engine(max_sequences=1, on_step=order.extend) as engine:
        gate = threading.Event()
        first = engine.submit(IDS[:3], max_tokens=2, logits_processor=lambda ids, x: (
            gate.wait(HANG_SECONDS), x)[1])  # fmt: skip
        later = engine.submit(IDS[:4], max_tokens=1, ignore_eos=True)
        urgent = engine.submit(IDS[:5], max_tokens=1, ignore_eos=True, priority=1)
        gate.set()
        for request in (first, later, urgent):
            request.result()

    ends = [event.id for event in order if event.finish]
    assert ends.index(urgent.id) < ends.index(later.id)


def test_a_listener_gets_the_events_of_a_step_at_once():
    steps = []
    with open_engine(on_step=steps.append) as engine:
        gate = threading.Event()
        first = engine.submit(IDS[:3], max_tokens=2, logits_processor=lambda ids, x: (
            gate.wait(HANG_SECONDS), x)[1])  # fmt: skip
        requests = [engine.submit(IDS[i : i + 4], max_tokens=6, ignore_eos=True) for i in range(3)]
        gate.set()
        results = {request.id: request.result() for request in [first, *requests]}

    for number, result in results.items():
        events = [event for step in steps for event in step if event.id == number]
        assert tuple(token for event in events for token in event.tokens) == result.tokens
    assert any({request.id for request in requests} <= {e.id for e in step} for step in steps)


# --- Prefixes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama3", "qwen35"])
def test_what_was_evaluated_is_not_evaluated_again(model):
    ids = tiny.ids(model)
    with open_engine(tiny.path(model, "q8_0"), n_ctx=192) as engine:
        first = engine.submit(ids[:100], max_tokens=5, ignore_eos=True).result()
        text = [*ids[:100], *first.tokens, 7, 8]
        second = engine.submit(text, max_tokens=1)
        assert [event.cached for event in second] == [104]  # each event has the number
        second = second.result()
        other = engine.submit([*ids[:100], 9], max_tokens=1, salt="other").result()
        stats = engine.stats()

    assert (first.usage.cached, other.usage.cached) == (0, 0)
    # The last token was sampled but not evaluated.
    assert second.usage.cached == 104
    assert (stats.counts.hits, stats.counts.cached) == (1, second.usage.cached)


def test_a_part_of_a_page_is_reused(engine):
    first = engine.submit([5, *IDS[:70]], max_tokens=1).result()
    second = engine.submit([5, *IDS[:67], 9], max_tokens=1).result()

    assert (first.usage.cached, second.usage.cached) == (0, 68)


def test_choices_of_a_prompt_share_its_pages():
    prompt = (IDS * 2)[:100]
    with open_engine(n_batch=128) as made:
        requests = [made.submit(prompt, max_tokens=2, temperature=1.0, seed=i) for i in range(4)]
        cached = [request.result().usage.cached for request in requests]
        read = made.stats().counts.prompt - made.stats().counts.cached
    assert sorted(cached) == [0, 99, 99, 99]
    assert read == 100 + 3


def test_states_are_kept_where_short_requests_diverged():
    """States are stored at the end of a common prefix, such as an instruction for titles."""
    ids = tiny.ids("qwen35")
    begin = ids[:23]
    with open_engine(tiny.path("qwen35", "q8_0")) as made:
        cached = [
            made.submit([*begin, i, *ids[30:60]], max_tokens=1).result().usage.cached
            for i in range(200, 205)
        ]
        evaluated = made.stats().counts.prompt - made.stats().counts.cached
    assert cached == [0, 0, 23, 23, 23]
    assert evaluated == 5 * 54 - 3 * 23


def test_states_are_kept_where_a_second_request_diverged():
    """States are also stored before the last message if the caller gives its position."""
    ids = tiny.ids("qwen35")
    with open_engine(tiny.path("qwen35", "q8_0"), n_ctx=192) as engine:
        cached = [
            engine.submit([*ids[:90], *tail], max_tokens=1, reusable=reusable).result().usage.cached
            for tail, reusable in [([1, 2], 0), ([3, 4], 0), ([5, 6], 80), ([7], 0)]
        ]
        engine.submit([9, *ids[:90], 1], max_tokens=1, reusable=80).result()
        last = engine.submit([9, *ids[:80], 4, 5], max_tokens=1).result()

    assert cached == [0, 0, 90, 90]
    assert last.usage.cached == 64  # one whole page


def test_a_hybrid_reads_no_prompt_again_when_an_answer_comes_back_otherwise():
    """The prompt's states are reused although the answer in the next prompt has other tokens.

    The template may omit the thoughts of an answer, or the answer may tokenise differently.
    """
    ids = tiny.ids("qwen35")
    with open_engine(tiny.path("qwen35", "q8_0"), n_ctx=192) as engine:
        first = engine.submit(ids[:70], GREEDY, max_tokens=6, ignore_eos=True).result()
        other = [(token + 1) % 500 for token in first.tokens]
        second = engine.submit([*ids[:70], *other, 1, 2], GREEDY, max_tokens=6, ignore_eos=True)
        answer = second.result()
        third = engine.submit([*ids[:70], *other, 1, 2, *answer.tokens, 3], max_tokens=1).result()

    assert answer.usage.cached == 70
    assert third.usage.cached == 70 + len(other) + 2 + 5  # the last token was not evaluated


@pytest.mark.parametrize(("copies", "kept"), [(0, 0), (2, 2), (99, 8)])
def test_copies_of_states_have_a_budget(copies, kept):
    """`snapshot_bytes` limits the copies of the states and convolution inputs of delta nets."""
    path = tiny.path("qwen35", "q8_0")
    with npurt.Llama(path, **OPTIONS) as llm:
        arrays = iter(llm.snapshot().arrays)
        size = sum(a.nbytes + b.nbytes for a, b in zip(arrays, arrays, strict=True) if b.ndim == 2)
        each = llm.model.executor.recurrent_bytes
    # A snapshot has space for the inputs of the convolution and of the gates.
    assert 0.5 * size <= each <= size
    with open_engine(path, prefixes=8, snapshot_bytes=copies * each) as engine:
        for number in range(9):
            engine.submit([number, 1, 2], max_tokens=1).result()
        assert engine.stats().prefixes == kept
        assert f", {kept} cached prefixes" in str(engine.llm.report())


def test_the_memory_for_keys_and_values_is_said():
    """The engine reports the bytes of all pages, even if the model was opened without a budget."""
    with npurt.Llama(PATH, **OPTIONS) as llm:
        c = llm.config
        page = 2 * c.n_layers * c.n_kv_heads * c.head_width * 64 * 2
    with open_engine(kv_bytes=5 * page + 7) as engine:
        assert engine.llm.model.executor.capacity().nbytes == 5 * page
        said = f"5 pages of 64 positions for keys and values, {5 * page} bytes"
        assert said in engine.sizes
        assert engine.sizes in str(engine.llm.report())
    with npurt.Llama(PATH, max_sequences=4, **OPTIONS) as llm, npurt.Engine(llm) as engine:
        pages = 4 * 2  # four sequences of 128 positions
        assert f"{pages} pages of 64 positions for keys and values, {pages * page} bytes" in (
            str(llm.report())
        )


# --- Opening and closing --------------------------------------------------------------------------


def test_an_open_model_can_be_used(llm):
    with npurt.Llama(PATH, max_sequences=6, **OPTIONS) as shared:
        shared.eval([1, 2, 3])
        with npurt.Engine(shared, max_sequences=3) as engine:
            text = engine.submit(IDS[:9], max_tokens=5, **GREEDY).text()
            with pytest.raises(SettingError, match="in use by another thread"):
                shared.eval([1])
        assert text == alone(llm, IDS[:9], max_tokens=5, **GREEDY)
        assert shared.generate(IDS[:9], max_tokens=5, **GREEDY) == text
    with pytest.raises(SettingError, match="opened for 1 sequences"):
        npurt.Engine(llm)
    assert llm.eval([1]).shape == (1, llm.config.n_vocab)


@pytest.mark.parametrize(
    "options",
    [{"max_sequences": 33}, {"draft": 5}, {"draft_max": 0}, {"kv_bytes": 0}, {"prefixes": -1}],
)
def test_engines_that_cannot_be_are_refused(options):
    with pytest.raises(SettingError):
        open_engine(**options)


def test_closing_ends_all_texts():
    engine = open_engine()
    requests = [engine.submit(IDS[:9], ignore_eos=True) for _ in range(6)]
    engine.close()

    assert {request.result().finish for request in requests} <= {"cancelled", "context"}
    engine.close()
    requests[0].cancel()
    with pytest.raises(SettingError, match="closed"):
        engine.submit([1])
    with pytest.raises(SettingError, match="closed"):
        engine.stats()


def test_an_engine_that_is_dropped_is_closed():
    engine = open_engine()
    closed, thread = weakref.ref(engine.llm), engine._loop._thread
    assert engine.submit(IDS[:9], max_tokens=3).result().finish
    del engine
    gc.collect()

    assert eventually(lambda: not thread.is_alive())
    gc.collect()
    assert closed() is None


def test_a_request_keeps_its_engine():
    assert (
        open_engine().submit(IDS[:9], max_tokens=3, ignore_eos=True).result().usage.generated == 3
    )


def test_a_listener_that_raises_ends_all_requests():
    def breaks(events):
        raise ZeroDivisionError("of the listener")

    engine = open_engine(on_step=breaks)
    request = engine.submit(IDS[:9], ignore_eos=True)
    with pytest.raises(ZeroDivisionError):
        request.result()
    with pytest.raises(SettingError, match="closed"):
        engine.submit([1])
    engine.close()
