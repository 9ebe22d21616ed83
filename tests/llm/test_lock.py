"""Tests of the lock of a model: while one thread uses it, others get an error, change nothing."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import npurt
from npurt.errors import SettingError
from npurt.llm.decode.sampler import TokenSampler
from npurt.llm.decode.stops import split_at_stop
from tests.limits import HANG_SECONDS
from tests.llm import tiny
from tests.llm.conftest import GREEDY, PROMPT, fresh, open_tiny
from tests.runtime.fake import FakeDevice

OTHER = list(reversed(PROMPT))
CALLS = {
    "eval": lambda llm: llm.eval(OTHER),
    "eval_last": lambda llm: llm.eval_last(OTHER),
    "generate": lambda llm: llm.generate(OTHER, max_tokens=2),
    "stream": lambda llm: next(llm.generate(OTHER, max_tokens=2, stream=True)),
    "nothing": lambda llm: llm.generate(OTHER, max_tokens=0),
    "chat": lambda llm: llm.chat([{"role": "user", "content": "x"}], max_tokens=2),
    "reset": lambda llm: llm.reset(),
    "rollback": lambda llm: llm.rollback(1),
    "snapshot": lambda llm: llm.snapshot(),
    "restore": lambda llm: llm.restore(None),
    "load_state": lambda llm: llm.load_state("no such file"),
    "close": lambda llm: llm.close(),
}


def elsewhere(call):
    """Run *call* in another thread; return the exception that it raised, or None."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).exception(HANG_SECONDS)


def assert_refused(error):
    assert isinstance(error, SettingError)
    assert "in use by another thread" in error.what
    assert "one Llama for each thread" in error.remedy


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_thread_that_comes_in_the_middle_of_a_run_is_refused_and_spoils_nothing(call):
    raised = []

    def meddle(index, y):
        if index in (3, 40):  # once in the prefill, and once in decoding
            raised.append(elsewhere(lambda: call(llm)))

    wanted = generated(FakeDevice())
    with npurt.Llama(tiny.path("llama3", "q8_0"), FakeDevice(meddle=meddle), n_ctx=128) as llm:
        text = llm.generate(PROMPT, max_tokens=12, **GREEDY)
        again = llm.generate([*PROMPT, 5], max_tokens=8, **GREEDY)

    assert (text, again) == wanted
    assert len(raised) == 2
    for error in raised:
        assert_refused(error)


def generated(device):
    with npurt.Llama(tiny.path("llama3", "q8_0"), device, n_ctx=128) as llm:
        text = llm.generate(PROMPT, max_tokens=12, **GREEDY)
        return text, llm.generate([*PROMPT, 5], max_tokens=8, **GREEDY)


@pytest.mark.parametrize("stream", [False, True])
def test_a_thread_that_comes_between_two_steps_is_refused_too(llm, monkeypatch, stream):
    wanted = fresh(llm, max_tokens=8, **GREEDY)
    raised = []
    sample = TokenSampler.sample

    def meddling(*args):
        raised.append(elsewhere(lambda: llm.eval(OTHER)))
        return sample(*args)

    monkeypatch.setattr(TokenSampler, "sample", meddling)

    assert "".join(fresh(llm, max_tokens=8, stream=stream, **GREEDY)) == wanted
    assert len(raised) == 8
    for error in raised:
        assert_refused(error)


def test_a_whole_text_is_one_turn(llm, monkeypatch):
    """The model stays locked between the steps of a generation."""
    wanted = fresh(llm, max_tokens=8, **GREEDY)
    raised = []

    def meddling(*args):
        raised.append(elsewhere(lambda: llm.eval(OTHER)))
        return split_at_stop(*args)

    monkeypatch.setattr("npurt.llm.decode.stops.split_at_stop", meddling)

    assert fresh(llm, max_tokens=8, **GREEDY) == wanted
    for error in raised:
        assert_refused(error)


def test_a_thread_that_waits_for_its_turn_has_it(llm):
    wanted = fresh(llm, max_tokens=8, **GREEDY)

    for _ in range(2):
        assert elsewhere(lambda: fresh(llm, OTHER, max_tokens=3)) is None
        assert fresh(llm, max_tokens=8, **GREEDY) == wanted


def test_a_stream_may_be_read_by_one_thread_after_another(llm):
    wanted = fresh(llm, max_tokens=8, **GREEDY)
    stream = fresh(llm, max_tokens=8, stream=True, **GREEDY)
    pieces = []

    for _ in range(4):
        assert elsewhere(lambda: pieces.extend(next(stream))) is None

    assert "".join([*pieces, *stream]) == wanted


def test_a_token_that_was_taken_back_between_two_pieces_ends_the_stream(llm):
    stream = fresh(llm, max_tokens=8, stream=True, **GREEDY)
    next(stream)
    llm.rollback(1)

    with pytest.raises(SettingError, match="another call used the model"):
        list(stream)


@pytest.mark.parametrize("extra", [0, 1, 100], ids=["as many", "one more", "full"])
@pytest.mark.parametrize("model", ["llama3", "qwen35"])
def test_what_another_did_between_two_pieces_ends_the_stream_and_no_more(model, extra):
    """This holds for any number of tokens that the other call leaves in the context."""
    prompt = tiny.ids(model, 12)
    with open_tiny(model) as llm:
        wanted = fresh(llm, prompt, max_tokens=8, **GREEDY)
        stream = fresh(llm, prompt, max_tokens=8, stream=True, **GREEDY)
        next(stream)

        def other():
            count = min(llm.n_tokens + extra, llm.n_ctx)
            llm.reset()
            llm.eval(([*reversed(prompt)] * 11)[:count])

        assert elsewhere(other) is None
        with pytest.raises(SettingError, match="another call used the model"):
            list(stream)

        assert llm.generate(prompt, max_tokens=8, **GREEDY) == wanted
