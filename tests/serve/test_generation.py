"""Completions of a request: how the tokens of steps become text, usage and finish reasons."""

import asyncio

import pytest

from npurt.serve.engine.protocol import SequenceEvent, Submit
from npurt.serve.front.front import ServerSettings
from npurt.serve.front.generation import Choice, Texts
from npurt.serve.http.errors import HttpError
from tests.serve.client import SAY_HI, Client, asking, served
from tests.serve.fake_engine import by_seed

IDS = served().tokenizer.encode("Hello World, how are you", add_bos=False)


def taken(steps, stops):
    """Return a choice that was fed *steps*, with its whole text and log probabilities."""
    choice = Choice(served().tokenizer, 0, stops)
    text, likely = "", []
    for tokens in steps:
        if choice.finish:
            break
        piece = choice.take(SequenceEvent(1, tokens, logprobs=[(-0.5, [])] * len(tokens)))
        text += piece.text
        likely += piece.likely
    return choice, text, likely


@pytest.mark.parametrize("stops", [["World"], ["lo", "Hello W"], [", h", "wa"], [" "]])
def test_steps_of_many_tokens_end_as_steps_of_one(stops):
    """A step with draft tokens gives several tokens; the text and the usage stay the same."""
    one, text, likely = taken([[i] for i in IDS], stops)
    assert one.stopped is not None
    for size in (2, 3, len(IDS)):
        many = taken([IDS[i : i + size] for i in range(0, len(IDS), size)], stops)
        assert (many[0].count, many[0].stopped, many[1], many[2]) == (
            one.count, one.stopped, text, likely
        )  # fmt: skip


class Sinks:
    """An engine that only records the requests."""

    def __init__(self):
        self.sinks, self.cancelled = [], []

    def submit(self, submit, sink):
        self.sinks.append(sink)
        return len(self.sinks)

    def cancel(self, sequence):
        self.cancelled.append(sequence)


def texts(prompts, each, done=lambda texts: None):
    """Return an engine, and *each* completions of every prompt."""
    engine = Sinks()
    submits = [Submit(0, prompt, len(prompt), {}) for prompt in prompts for _ in range(each)]
    choices = [Choice(served().tokenizer, i) for i in range(len(submits))]
    return engine, Texts(engine, submits, choices, sum(map(len, prompts)), done)


@pytest.mark.parametrize(
    ("prompts", "each", "cached", "wanted"),
    [
        ([[1] * 100], 1, [64], 64),
        ([[1] * 100], 3, [0, 64, 64], 0),  # the second completion reuses the pages of the first
        ([[1] * 100, [2] * 100], 1, [64, 96], 160),
        ([[1] * 100, [2] * 100], 2, [64, 96, 0, 96], 64),
    ],
)
@asking
async def test_cached_tokens_are_those_that_nobody_read(prompts, each, cached, wanted):
    engine, found = texts(prompts, each)
    for i, count in enumerate(cached):
        engine.sinks[i](SequenceEvent(i + 1, [50], finish="end", cached=count))
    await found.whole()
    assert found.cached_tokens == wanted


@asking
async def test_a_text_that_fails_gives_its_place_back_though_nobody_reads():
    ended = []
    engine, found = texts([[1, 2]], 2, ended.append)
    found.give_up(HttpError(504, "late", remedy="ask again"))
    assert engine.cancelled == [1, 2]
    assert ended == [found]
    with pytest.raises(HttpError, match="late"):
        await found.whole()
    assert ended == [found]


@asking
async def test_progress_is_told_when_it_is_made():
    engine, found = texts([[1] * 100], 1)
    found.progress = True
    pieces = found.pieces()
    told = []
    for event in (
        SequenceEvent(1, read=40, cached=10),
        SequenceEvent(1, read=100),
        SequenceEvent(1, [50], read=100),
    ):
        engine.sinks[0](event)
        told.append((await anext(pieces), found.read))
    assert told[:2] == [(None, 40), (None, 100)]
    assert told[2][0].text
    await pieces.aclose()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@asking
async def test_signs_of_life_are_of_a_choice_that_goes_on(path):
    """No keep-alive follows the chunk that ends a choice."""
    x = served().tokenizer.encode("x", add_bos=False)
    client = Client(by_seed([x, 30 * x]), settings=ServerSettings(ping=0.01))
    body = (SAY_HI if "chat" in path else {"prompt": "hi"}) | {"n": 2, "seed": 0, "stream": True}
    asked = asyncio.create_task(client(path, body))
    while 1 in client.backend.all or not client.engine.ids:
        await asyncio.sleep(0)
    client.engine.go.clear()
    await asyncio.sleep(0.1)
    client.engine.go.set()
    events = [event["choices"][0] for event in (await asked).events[:-1]]

    end = next(i for i, choice in enumerate(events) if choice["finish_reason"])
    assert events[end]["index"] == 0
    assert len(events) > end + 32
    assert {choice["index"] for choice in events[end + 1 :]} == {1}
