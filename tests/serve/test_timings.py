"""Durations in answers and metrics: the queue, the prompt and the generated tokens are apart."""

import asyncio
import types

import pytest

from npurt.serve.front import timings
from tests.serve.client import SAY_HI, Client, asking
from tests.serve.fake_engine import FakeBackend

CHAT, TEXT, LLAMA = "/v1/chat/completions", "/v1/completions", "/completion"
BODIES = {CHAT: SAY_HI, TEXT: {"prompt": "hi"}, LLAMA: {"prompt": "hi"}}
STEP = 2.0  # seconds of a step, by the clock of the tests


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the steps of the fake engine advance."""
    found = types.SimpleNamespace(now=1000.0)
    found.monotonic = lambda: found.now
    monkeypatch.setattr(timings, "time", found)
    step = FakeBackend.step

    def timed(self):
        found.now += STEP
        return step(self)

    monkeypatch.setattr(FakeBackend, "step", timed)
    return found


async def two(path, tokens=4, **fields):
    """Send two requests to an engine that runs one at a time; return both answers and the client.

    The first request takes two steps more than it has tokens: one for the prompt, one for the end.
    """
    client = Client(sequences=1)
    name = "n_predict" if path == LLAMA else "max_tokens"
    body = BODIES[path] | {name: tokens, "seed": 1} | fields
    replies = await asyncio.gather(client(path, body), client(path, body))
    return [reply.events[-2:] if fields.get("stream") else reply.json for reply in replies], client


@pytest.mark.parametrize("path", BODIES)
@asking
async def test_the_queue_is_no_part_of_the_prompt(path, clock):
    (first, second), _ = await two(path)
    alone, waited = first["timings"], second["timings"]

    assert alone["predicted_n"] == waited["predicted_n"] == 4
    assert waited["queue_ms"] - alone["queue_ms"] == 1e3 * STEP * 6
    # The fake engine does not report when it began: the first event is the end of the prompt.
    assert waited["prompt_ms"] == alone["prompt_ms"] == 1e3 * STEP
    assert waited["predicted_ms"] == alone["predicted_ms"] == 1e3 * STEP * 3
    assert waited["predicted_per_second"] == 1 / STEP
    assert waited["predicted_per_token_ms"] == 1e3 * STEP
    assert waited["prompt_per_second"] == waited["prompt_n"] / STEP
    assert waited["prompt_n"] + waited["cache_n"] > 0


@pytest.mark.parametrize("path", BODIES)
@asking
async def test_a_single_token_has_no_rate(path, clock):
    (answer, _), _ = await two(path, 1)
    found = answer["timings"]
    assert (found["predicted_n"], found["predicted_ms"]) == (1, 0.0)
    assert found["predicted_per_second"] is found["predicted_per_token_ms"] is None


@pytest.mark.parametrize("path", BODIES)
@asking
async def test_the_last_chunk_of_a_stream_has_the_timings(path, clock):
    ((*_, ending), _), _ = await two(path, stream=True)
    whole, _ = await two(path)
    if path != LLAMA:
        events = (await Client("hi")(path, BODIES[path] | {"stream": True, "n": 2})).events
        assert [i for i, each in enumerate(events[:-1]) if "timings" in each] == [len(events) - 2]
        ending = (await two(path, stream=True))[0][0][0]
        with_usage = (await two(path, stream=True, stream_options={"include_usage": True}))[0][0]
        assert with_usage[0]["choices"] == []
        assert with_usage[0]["timings"] == ending["timings"]
    assert ending["timings"] == whole[0]["timings"]


@asking
async def test_ollama_counts_without_the_queue(clock):
    client = Client(sequences=1)
    body = SAY_HI | {"stream": False, "options": {"num_predict": 4}}
    replies = await asyncio.gather(client("/api/chat", body), client("/api/chat", body))
    for answer in (reply.json for reply in replies):
        assert answer["prompt_eval_duration"] == int(1e9 * STEP)
        assert answer["eval_duration"] == int(1e9 * STEP * 3)


def test_an_engine_reports_how_long_ago_it_began(clock):
    timing = timings.CompletionTiming()
    clock.now += 50
    timing.take(types.SimpleNamespace(seconds=30.0, read=5, tokens=()))
    clock.now += 10
    timing.take(types.SimpleNamespace(seconds=40.0, read=9, tokens=(1,)))
    assert (timing.queue, timing.prompt, timing.generation) == (20.0, 40.0, 0.0)
    # After a restart of the engine, the first beginning counts.
    clock.now += 5
    timing.take(types.SimpleNamespace(seconds=1.0, read=9, tokens=(1,)))
    assert (timing.queue, timing.prompt, timing.generation) == (20.0, 40.0, 5.0)


@asking
async def test_metrics_count_seconds(clock):
    _, client = await two(CHAT)
    text = (await client("/metrics")).body.decode()
    values = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
    found = {name: float(value) for name, value in values.items()}

    assert found["llamacpp:prompt_seconds_total"] == 2 * STEP
    assert found["llamacpp:tokens_predicted_seconds_total"] == 2 * STEP * 3
    assert found["npurt:queue_seconds_total"] > STEP * 6
    assert found["llamacpp:predicted_tokens_seconds"] == 1 / STEP
    assert found["llamacpp:prompt_tokens_seconds"] == (
        found["llamacpp:prompt_tokens_total"] / found["llamacpp:prompt_seconds_total"]
    )
    assert found["llamacpp:n_tokens_max"] == found["llamacpp:prompt_tokens_total"] / 2 + 4
    assert found["npurt:cached_tokens_total"] == 0
