"""Many requests: the queue, disconnected clients, keep-alives, deadlines, and shutdown."""

import asyncio
import re
import threading

import pytest

from npurt.serve.engine.wire import EngineLost
from npurt.serve.front import front
from npurt.serve.front.front import ServerSettings
from npurt.serve.front.served_model import ServedModel
from npurt.serve.http import limits
from npurt.serve.http.endpoint import WorkThreads
from tests.limits import HANG_SECONDS
from tests.serve.client import SAY_HI, TEMPLATE, Client, asking

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
STREAM = SAY_HI | {"stream": True}


async def settle(condition):
    """Let other tasks run until *condition* holds."""
    while not condition():
        await asyncio.sleep(0)


async def held(client, count, body=SAY_HI):
    """Return the tasks of *count* requests that wait because the engine is halted."""
    client.engine.go.clear()
    tasks = [asyncio.create_task(client(CHAT, body)) for _ in range(count)]
    await settle(lambda: client.front.active == count)
    return tasks


@asking
async def test_a_full_queue_answers_429_and_when_to_come_again():
    client = Client("x", sequences=2)
    tasks = await held(client, 10)  # 2 run, 8 wait
    refused = await client(CHAT, SAY_HI)
    client.engine.go.set()
    replies = await asyncio.gather(*tasks)

    assert refused.status == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json["error"]["code"] == "queue_full"
    assert {reply.status for reply in replies} == {200}
    assert (await client(CHAT, SAY_HI)).status == 200
    assert client.front.counts.refused == 1


@asking
async def test_choices_count_in_the_queue():
    client = Client("x", sequences=1)
    tasks = await held(client, 4)
    assert (await client(CHAT, SAY_HI | {"n": 2})).status == 429
    client.engine.go.set()
    await asyncio.gather(*tasks)
    # a request that is alone may have more choices
    assert (await client(CHAT, SAY_HI | {"n": 8})).status == 200


def test_when_to_come_again_follows_from_what_texts_took():
    async def run():
        client = Client("x")
        counts = client.front.counts
        assert client.front.retry_after() == 1
        counts.seconds, counts.ended = 300.0, 10  # 30 s each, and no request is in progress
        assert client.front.retry_after() == 30
        counts.seconds = 1e6
        assert client.front.retry_after() == 60

    asyncio.run(run())


@pytest.mark.parametrize("body", [SAY_HI, STREAM, STREAM | {"n": 4}], ids=["whole", "stream", "n"])
@pytest.mark.parametrize("moment", ["queued", "running"])
@asking
async def test_a_client_that_goes_away_frees_its_rows_at_once(body, moment):
    client = Client(sequences=2, n_ctx=1 << 20)
    gone = asyncio.Event()
    if moment == "queued":
        client.engine.go.clear()
    task = asyncio.create_task(client(CHAT, body, gone=gone))
    await settle(lambda: client.front.active)
    if moment == "running":
        await settle(lambda: client.backend.steps > 5)
    steps = client.backend.steps
    gone.set()
    await settle(lambda: not client.front.active)

    assert not client.backend.busy
    # Each step of the fake backend takes one turn of the event loop; a stream ends in a few turns.
    assert client.backend.steps <= steps + 10
    client.engine.go.set()
    await task
    assert len(client.backend.cancelled) == body.get("n", 1)


@asking
async def test_a_client_that_is_gone_before_its_stream_begins_leaves_nothing():
    client = Client(n_ctx=1 << 20)
    gone = asyncio.Event()
    gone.set()
    await client(CHAT, STREAM, gone=gone)
    assert not client.backend.busy
    assert client.front.active == 0


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, STREAM), (TEXT, {"prompt": "a", "stream": True})]
)
@asking
async def test_a_stream_shows_signs_of_life_that_count(path, body):
    client = Client("Hello", settings=ServerSettings(ping=0.01))
    client.engine.go.clear()
    task = asyncio.create_task(client(path, body))
    await asyncio.sleep(0.1)
    client.engine.go.set()
    events = (await task).events[:-1]
    texts = [e["choices"][0].get("text", e["choices"][0].get("delta")) for e in events]

    # one of the empty texts is the end of the stream
    assert sum(text in ("", {}) for text in texts) >= 3
    assert all(event["choices"][0]["index"] == 0 for event in events)


@asking
async def test_a_running_stream_needs_no_signs_of_life():
    client = Client("Hello", settings=ServerSettings(ping=60.0))
    events = (await client(CHAT, STREAM)).events[:-1]
    assert sum(event["choices"][0]["delta"] == {} for event in events) == 1


@pytest.mark.parametrize("stream", [True, False])
@asking
async def test_a_request_that_takes_too_long_ends(stream):
    client = Client(n_ctx=1 << 20, settings=ServerSettings(deadline=0.02))
    reply = await client(CHAT, SAY_HI | {"stream": stream})

    if stream:
        assert reply.events[-1]["error"]["code"] == "deadline_exceeded"
    else:
        assert reply.status == 504
        assert reply.json["error"]["code"] == "deadline_exceeded"
    assert not client.backend.busy


@asking
async def test_a_server_that_ends_finishes_what_is_under_way():
    client = Client("x")
    tasks = await held(client, 2)
    draining = asyncio.create_task(client.front.drain())
    await asyncio.sleep(0)
    refused, health = await client(CHAT, SAY_HI), await client("/health")
    client.engine.go.set()

    assert {(await task).status for task in tasks} == {200}
    assert (refused.status, health.status) == (503, 503)
    assert refused.headers["retry-after"]
    await draining


@asking
async def test_a_server_that_cannot_wait_ends_its_streams_with_an_event():
    client = Client(n_ctx=1 << 20)
    whole = asyncio.create_task(client(CHAT, SAY_HI))
    stream = asyncio.create_task(client(CHAT, STREAM))
    await settle(lambda: client.backend.steps > 3)
    await client.front.drain(0.0)

    assert (await stream).events[-1]["error"]["code"] == "shutting_down"
    assert (await whole).status == 503


@asking
async def test_a_client_that_reads_nothing_does_not_keep_the_server(monkeypatch):
    monkeypatch.setattr(front, "LAST_SECONDS", 0.05)
    client = Client(n_ctx=1 << 20)
    client.stuck = True
    task = asyncio.create_task(client(CHAT, STREAM))
    await settle(lambda: client.backend.steps > 3)
    await client.front.drain(0.0)

    assert not client.backend.busy
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert client.front.active == 0


@asking
async def test_a_model_that_cannot_be_opened_again_answers_503():
    client = Client("x")
    client.engine.failure = EngineLost("the model was not open after 300 s", remedy="look")
    reply = await client(CHAT, SAY_HI)
    assert (reply.status, reply.headers["retry-after"]) == (503, "30")
    assert "not open after 300 s" in reply.json["error"]["message"]
    client.engine.failure = None
    assert (await client(CHAT, SAY_HI)).status == 200


@asking
async def test_a_model_that_loads_answers_503():
    client = Client("x")
    ready, client.engine.ready, client.engine.alive = client.engine.ready, None, False
    for reply in (await client(CHAT, SAY_HI), await client("/health")):
        assert reply.status == 503
        assert reply.headers["retry-after"]
        assert "loading" in reply.json["error"]["message"]
    client.engine.ready = ready
    assert "started again" in (await client("/health")).json["error"]["message"]
    client.engine.alive = True
    assert (await client("/health")).json == {"status": "ok"}


@asking
async def test_metrics_count():
    client = Client("Hello")
    await client(CHAT, SAY_HI)
    text = (await client("/metrics")).body.decode()
    values = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
    usage = (await client(CHAT, SAY_HI)).json["usage"]

    assert float(values["llamacpp:prompt_tokens_total"]) == usage["prompt_tokens"]
    assert float(values["llamacpp:tokens_predicted_total"]) == usage["completion_tokens"]
    assert float(values["npurt:requests_total"]) == 1
    assert float(values["npurt:verified_total"]) == 7
    assert float(values["npurt:device_restarts_total"]) == 2
    assert float(values["llamacpp:requests_processing"]) == 0
    assert float(values["npurt:ready"]) == 1


def test_a_server_says_how_much_memory_keys_and_values_have(real):
    assert re.search(r"pages of 64 positions for keys and values, \d+ bytes", real.log.read_text())


LONG = "a" * 300
ALL = [
    (CHAT, {}), (TEXT, {"prompt": LONG}), ("/completion", {"prompt": LONG}),
    ("/v1/responses", {"input": LONG}), ("/v1/messages", {}), ("/api/chat", {}),
    ("/api/generate", {"prompt": LONG}), ("/api/generate", {"prompt": LONG, "raw": True}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), ALL)
@asking
async def test_progress_is_told_on_every_interface_as_the_prompt_is_read(path, body):
    client = Client("x", n_ctx=1 << 10, chunk=64, settings=ServerSettings(ping=60.0))
    asked = {"messages": [{"role": "user", "content": LONG}], "stream": True} | body
    reply = await client(path, asked | {"return_progress": True})
    objects = reply.lines if path.startswith("/api/") else reply.events
    objects = [each[1] if isinstance(each, tuple) else each for each in objects]
    told = [each["prompt_progress"] for each in objects if "prompt_progress" in each]
    (submit,) = client.backend.submitted
    reads = [min(submit.prompt, end) for end in range(64, submit.prompt + 64, 64)]

    assert [each["processed"] for each in told] == reads
    assert all(each.keys() == {"total", "cache", "processed", "time_ms"} for each in told)
    assert {each["total"] for each in told} == {submit.prompt}
    assert b"prompt_progress" not in (await client(path, asked)).body


@pytest.mark.parametrize(
    ("path", "body"),
    [*ALL, ("/v1/messages/count_tokens", {}), ("/tokenize", {"content": "a"}),
     ("/apply-template", {})],
)  # fmt: skip
@asking
async def test_a_large_prompt_does_not_keep_others_waiting(path, body, monkeypatch):
    """While the large prompt is processed in a thread, the event loop runs and sets the event."""
    client, begun, went_on, waited = Client("x"), threading.Event(), threading.Event(), []

    def slow(*_, **__):
        begun.set()
        waited.append(went_on.wait(1.0))  # this wait times out only if the prompt blocks the loop
        return "a" if path == "/apply-template" else [50]

    model = ServedModel(client.model.path, "tiny", TEMPLATE)
    client.front.model = model
    for name in ("prompt",) if path == "/apply-template" else ("encode", "encode_prompt"):
        monkeypatch.setattr(model, name, slow)
    filler = {"filler": "a" * limits.LARGE}
    task = asyncio.create_task(client(path, SAY_HI | {"max_tokens": 1} | body | filler))
    await settle(begun.is_set)
    went_on.set()
    assert (await task).status == 200
    assert waited == [True]


@asking
async def test_a_small_request_waits_in_a_thread_for_what_a_large_one_holds():
    """The event loop, which sends all streams, never waits."""
    began, go_on = threading.Event(), threading.Event()

    def hold():
        began.set()
        return go_on.wait(HANG_SECONDS)

    main, threads = threading.current_thread(), WorkThreads()
    assert await threads.do(threading.current_thread, large=False) is main
    large = asyncio.create_task(threads.do(hold, large=True))
    while not began.is_set():
        await asyncio.sleep(0)
    large.cancel()  # the client disconnects, but the thread continues
    await asyncio.gather(large, return_exceptions=True)
    assert await threads.do(threading.current_thread, large=False) is not main
    go_on.set()
    while threads._under_way[0].running():
        await asyncio.sleep(0)
    assert await threads.do(threading.current_thread, large=False) is main
