"""Embeddings over HTTP."""

import base64
import contextlib
import queue
from unittest import mock

import numpy as np
import ollama
import openai
import pytest

import npurt
from npurt.serve.engine.embeddings import Embeddings
from npurt.serve.engine.protocol import Submit
from npurt.serve.engine.worker import _obey
from tests.limits import HANG_SECONDS
from tests.llm import tiny
from tests.serve.client import SAY_HI, Client, asking
from tests.serve.live import serving
from tests.serve.test_clients import client_of

TEXTS = ["Hello", "An NPU", "é"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(
        tmp_path_factory.mktemp("embeddings"),
        engine="npurt.serve.engine",
        settings={"embeddings": True},
        embeddings=True,
        n_ctx=64,
    ) as found:
        yield found


@pytest.fixture(scope="module")
def expected():
    with npurt.Llama(tiny.path("llama3", "q8_0"), n_ctx=64) as llm:
        return llm.embed(TEXTS)


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_openais_client_gets_what_the_library_gives(server, expected, form):
    asked = {} if form is None else {"encoding_format": form}
    with client_of(server) as client:
        answer = client.embeddings.create(model="x", input=TEXTS, **asked)
    if form == "base64":
        found = [np.frombuffer(base64.b64decode(each.embedding), "<f4") for each in answer.data]
    else:
        found = [np.array(each.embedding, np.float32) for each in answer.data]

    assert np.array_equal(np.stack(found), expected)
    assert [each.index for each in answer.data] == [0, 1, 2]
    assert answer.usage.prompt_tokens > 3


def test_ollamas_client_gets_the_same(server, expected):
    found = ollama.Client(host=server.url, timeout=HANG_SECONDS)
    with contextlib.closing(found._client):
        answer = found.embed(model="x", input=TEXTS)
    assert np.array_equal(np.array(answer.embeddings, np.float32), expected)


def test_embeddings_go_on_when_the_engine_is_killed(server, expected):
    with client_of(server) as client:
        server.kill_engine()
        answer = client.embeddings.create(model="x", input=TEXTS[0])
    assert np.array_equal(np.array(answer.data[0].embedding, np.float32), expected[0])


def test_errors_are_of_the_clients_own_classes(server):
    with client_of(server) as client:
        for asked in ({"input": "x " * 500}, {"input": []}, {"input": ""}, {"input": [[]]},
                      {"input": "x", "dimensions": 3}, {"input": [99999]}):  # fmt: skip
            with pytest.raises(openai.BadRequestError):
                client.embeddings.create(model="x", **asked)
        with pytest.raises(openai.BadRequestError, match="embeds texts only"):
            client.completions.create(model="x", prompt="a")


@asking
async def test_a_server_of_texts_embeds_none():
    client = Client("x")
    reply = await client("/v1/embeddings", {"input": "a"})
    assert (reply.status, reply.json["error"]["code"]) == (400, "unsupported")
    assert (await client("/v1/chat/completions", SAY_HI)).status == 200


def test_products_of_embeddings_are_counted_as_checked():
    events = queue.Queue()
    options = {"n_ctx": 64, "verify": "always"}
    engine = Embeddings(str(tiny.path("llama3", "q8_0")), options, events.put)
    with contextlib.closing(engine):
        engine.submit(Submit(1, [1, 2], 2, {}, embed=True))
        events.get(timeout=HANG_SECONDS)
        stats = engine.stats()

    assert stats["verified"] > 0
    assert stats["wrong"] == stats["device_restarts"] == 0


@pytest.mark.parametrize("error", [ValueError("odd"), MemoryError()])
def test_a_mistake_of_one_text_leaves_the_others_alone(error):
    events = queue.Queue()
    engine = Embeddings(str(tiny.path("llama3", "q8_0")), {"n_ctx": 64}, events.put)
    each = engine._llm.embedder.each
    with contextlib.closing(engine):
        with mock.patch.object(engine._llm.embedder, "each", side_effect=error):
            engine.submit(Submit(1, [1, 2], 2, {}, embed=True))
            (failed,) = events.get(timeout=HANG_SECONDS)
        with mock.patch.object(engine._llm.embedder, "each", side_effect=each):
            engine.submit(Submit(2, [1, 2], 2, {}, embed=True))
            (made,) = events.get(timeout=HANG_SECONDS)

    assert (failed.id, failed.finish, failed.error[0]) == (1, "error", repr(error))
    assert (made.id, made.finish) == (2, "end")


def test_a_mistake_while_a_text_is_taken_ends_that_text_alone():
    engine = mock.Mock(**{"submit.side_effect": ValueError("odd")})
    sent = []

    _obey(Submit(1, [1], 1, {}), engine, sent.append)

    assert [event.error[0] for event in sent[0].events] == ["ValueError('odd')"]
