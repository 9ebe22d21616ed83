"""Test the backend of the server that runs many sequences."""

import threading

from npurt.llm.decode.stops import TextStream
from npurt.serve.engine.batched import Batched
from npurt.serve.engine.protocol import Submit
from tests.limits import HANG_SECONDS
from tests.llm import tiny


def test_only_the_front_decodes_tokens(monkeypatch):
    monkeypatch.setattr(TextStream, "__init__", None)  # an engine that decodes fails
    events, ended = [], threading.Event()

    def emit(found):
        events.extend(found)
        if found[-1].finish:
            ended.set()

    options = {"device": "cpu", "n_ctx": 64, "n_threads": 1}
    backend = Batched(str(tiny.path("llama3", "q8_0")), options, emit)
    try:
        backend.submit(Submit(7, [1, 2, 3], 3, {"temperature": 0, "seed": 1}, 5, ignore_eos=True))
        assert ended.wait(HANG_SECONDS)
    finally:
        backend.close()

    assert {event.id for event in events} == {7}
    assert sum(len(event.tokens) for event in events) == 5
    assert events[-1].finish == "length"
