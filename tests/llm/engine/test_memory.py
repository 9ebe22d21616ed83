"""Tests of an engine's memory: requests that have ended leave nothing except cached prefixes.

The same requests are submitted in many rounds.  After the first rounds, the number of Python's
objects must not grow; `bench/soak_engine.py` checks the memory of the process.
"""

import gc
import sys
import weakref
from collections import Counter

import pytest

import npurt
from npurt.llm.decode import step
from npurt.llm.engine.engine import Engine
from npurt.llm.engine.request import Request
from tests.llm import tiny

WARM, ROUNDS = 22, 32
PREFIXES, SEQUENCES = 3, 4
POSITIONS = 64


def failing(ids, logits):
    raise ValueError("as a function of a user may fail")


OPTIONS = (
    {"temperature": 0}, {"seed": 1}, {"logprobs": 2}, {"stop": "e"}, {"deadline": 0.0},
    {"max_tokens": 1000, "ignore_eos": True}, {"grammar": 'root ::= "yes"'},
    {"logits_processor": [failing]}, {"salt": "another"}, {"max_tokens": 0},
)  # fmt: skip


def one_round(engine, prompts):
    """Submit each prompt with each of `OPTIONS`, cancel one request in seven; return the ends."""
    requests = [
        engine.submit(prompt, **({"max_tokens": 3} | options))
        for prompt in prompts
        for options in OPTIONS
    ]
    for request in requests[::7]:
        request.cancel()
    ends = []
    for request in requests:
        try:
            ends.append(request.result().finish)
        except ValueError:
            ends.append("error")
    return ends


def objects():
    """Return the number of Python's memory blocks, and that of the objects of each npurt class."""
    gc.collect()
    kinds = map(type, gc.get_objects())
    classes = Counter(kind for kind in kinds if str(kind.__module__).startswith("npurt."))
    return sys.getallocatedblocks(), classes


@pytest.mark.parametrize(
    "wait", [Request.result, Request.text, list], ids=["result", "text", "events"]
)
def test_a_request_that_failed_goes_with_its_last_reference(wait):
    """A request, its error and its events form no cycle; a note of the error names its origin."""
    with npurt.Engine(
        tiny.path("llama3", "q8_0"), n_ctx=POSITIONS, n_threads=2, progress=False, max_sequences=1
    ) as engine:
        gc.collect()
        gc.disable()
        try:
            request = engine.submit([1, 2], logits_processor=[failing])
            with pytest.raises(ValueError, match="may fail") as raised:
                wait(request)
            assert "in failing" in raised.value.__notes__[0]
            gone = weakref.ref(request)
            del request, raised
            engine.submit([3, 4], max_tokens=1).result()  # the engine's thread drops the first
            assert gone() is None
            assert gc.collect() == 0
        finally:
            gc.enable()


OUTCOMES = {
    "finished": {"max_tokens": 5},
    "scored": {"max_tokens": 2, "logprobs": 3, "prompt_logprobs": True},
    "context": {"max_tokens": 10**6, "ignore_eos": True},
    "grammar": {"grammar": 'root ::= "yes" | "no"'},
    "wrong grammar": {"grammar": "root ::= "},
    "deadline": {"deadline": 0.01, "ignore_eos": True},
    "failed": {"logits_processor": [failing]},
    "failed run": {},
    "cancelled": {"max_tokens": 10**6, "ignore_eos": True},
    "dropped": {"max_tokens": 10**6, "ignore_eos": True},
}


def one_of(engine, outcome):
    """Run a request with this *outcome*; return its result or error, or None if it is dropped.

    The local variable `request` still refers to the request when its error is raised.
    """
    try:
        request = engine.submit([1, 2, 3], **OUTCOMES[outcome])
        if outcome == "cancelled":
            request.cancel()
        return None if outcome == "dropped" else request.result()
    except (ValueError, MemoryError) as error:
        return error


def no_memory(pieces, out):
    raise MemoryError


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_no_request_is_garbage(outcome, monkeypatch):
    """Requests form no reference cycles, which only the garbage collector would free."""
    with npurt.Engine(
        tiny.path("llama3", "q8_0"), n_ctx=POSITIONS, n_threads=2, progress=False, max_sequences=1
    ) as engine:
        one_of(engine, outcome)  # loads modules and makes tables, which remain
        engine.submit([3, 4], max_tokens=1).result()
        gc.collect()
        gc.disable()
        try:
            with monkeypatch.context() as patch:
                if outcome == "failed run":
                    patch.setattr(step, "run_together", no_memory)
                for _ in range(5):
                    one_of(engine, outcome)
            engine.submit([3, 4], max_tokens=1).result()  # the engine's thread drops the others
            assert gc.collect() == 0
        finally:
            gc.enable()


class Particular(Exception):
    """An error that cannot be copied, because its constructor does not accept its `args`."""

    def __init__(self, *, why):
        super().__init__("particular", why)


def test_any_error_of_a_function_is_raised_with_its_cause():
    def failing_so(ids, logits):
        raise Particular(why=3) from KeyError("cause")

    def failing_with_code(ids, logits):
        raise OSError(5, "no disk") from KeyError("cause")

    with npurt.Engine(
        tiny.path("llama3", "q8_0"), n_ctx=POSITIONS, n_threads=2, progress=False, max_sequences=1
    ) as engine:
        for function, wanted in ((failing_so, Particular), (failing_with_code, OSError)):
            request = engine.submit([1, 2], logits_processor=[function])
            for _ in range(2):
                with pytest.raises(wanted) as raised:
                    request.result()
                assert isinstance(raised.value.__cause__, KeyError)
                assert f"in {function.__name__}" in raised.value.__notes__[0]
        assert raised.value.errno == 5


@pytest.mark.parametrize("model", ["llama3", "qwen35"])
def test_requests_leave_nothing_behind(model):
    """The number of objects does not grow with requests; a closed engine has freed all pages."""
    ids = tiny.ids(model)
    prompts = [ids[i : i + 5 + i] for i in range(3)]
    with npurt.Llama(
        tiny.path(model, "q8_0"), n_ctx=POSITIONS, n_batch=16, n_threads=2, progress=False,
        max_sequences=SEQUENCES + PREFIXES + 2,
    ) as llm:  # fmt: skip
        with Engine(llm, max_sequences=SEQUENCES, prefixes=PREFIXES) as engine:
            for _ in range(WARM):
                ends = one_round(engine, prompts)
            blocks, before = objects()
            for _ in range(ROUNDS):
                one_round(engine, prompts)
            more, after = objects()
            assert engine.stats().running == engine.stats().waiting == 0
        capacity = llm.model.executor.capacity()
        assert capacity.free == capacity.total

    # Python caches some small objects, fewer than one per request.
    assert more - blocks < len(ends) * ROUNDS
    assert {kind: n for kind, n in (after - before).items() if n > len(OPTIONS)} == {}
    assert set(ends) >= {"length", "context", "cancelled", "deadline", "error"}
