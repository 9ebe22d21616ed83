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
from tests.llm import gguf_files as raw
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


def test_ollamas_long_texts_are_cut_unless_truncate_is_false(server):
    text = "An NPU " * 99
    with npurt.Llama(tiny.path("llama3", "q8_0"), n_ctx=64) as llm:
        wanted = llm.embed([text, "Hello"], truncate=True)
    body = {"model": "x", "input": [text, "Hello"]}
    status, answer = server.post("/api/embed", body)
    assert status == 200
    assert np.array_equal(np.array(answer["embeddings"], np.float32), wanted)
    assert (
        server.post("/api/embed", body | {"truncate": True})[1]["embeddings"]
        == (answer["embeddings"])
    )
    status, refused = server.post("/api/embed", body | {"truncate": False})
    assert status == 400
    assert "exceeds the available context size" in refused["error"].lower()


def test_ollamas_dimensions_cut_a_vector_and_scale_the_rest(server, expected):
    body = {"model": "x", "input": TEXTS, "dimensions": 5}
    found = np.array(server.post("/api/embed", body)[1]["embeddings"], np.float32)
    shorter = expected[:, :5] / np.linalg.norm(expected[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(found, shorter, rtol=0, atol=1e-6)  # float32 of values below 1
    whole = server.post("/api/embed", body | {"dimensions": 99999})[1]["embeddings"]
    assert np.array_equal(np.array(whole, np.float32), expected)


@pytest.mark.parametrize("given", [{}, {"input": ""}, {"input": []}])
def test_ollamas_request_without_texts_loads_the_model(server, given):
    status, answer = server.post("/api/embed", {"model": "x"} | given)
    assert (status, answer["embeddings"]) == (200, [])


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


def test_ollamas_older_path_has_one_vector_that_is_not_scaled(server):
    with npurt.Llama(tiny.path("llama3", "q8_0"), n_ctx=64) as llm:
        raw = llm.embed(TEXTS[1], normalize=False)
    status, answer = server.post("/api/embeddings", {"model": "x", "prompt": TEXTS[1]})
    assert status == 200
    assert np.array_equal(np.array(answer["embedding"], np.float32), raw)
    assert server.post("/api/embeddings", {"model": "x"}) == (200, {"embedding": []})
    found = ollama.Client(host=server.url, timeout=HANG_SECONDS)
    with contextlib.closing(found._client):
        assert found.embeddings("x", TEXTS[1]).embedding == answer["embedding"]


@pytest.mark.parametrize("norm", [None, -1, 0, 1, 2, 3])
def test_llama_cpps_path_scales_vectors_as_asked(server, expected, norm):
    asked = {} if norm is None else {"embd_normalize": norm}
    status, answer = server.post("/embedding", {"content": TEXTS} | asked)
    rows = [np.array(each["embedding"]) for each in answer]

    assert status == 200
    assert [each["index"] for each in answer] == [0, 1, 2]
    assert {row.shape for row in rows} == {(1, expected.shape[1])}
    for (row,), wanted in zip(rows, expected, strict=True):
        scaled = row / np.linalg.norm(row)
        np.testing.assert_allclose(scaled, wanted, rtol=0, atol=1e-6)  # float32 of values below 1
        if norm == 0:
            assert abs(row).max() == pytest.approx(32760)
        elif norm in (None, 1, 2, 3):
            assert np.linalg.norm(row, norm or 2) == pytest.approx(1)
    one = server.post("/embedding", {"input": TEXTS[0]} | asked)[1]
    assert one == answer[:1]


def test_a_model_without_pooling_has_a_vector_for_each_token(tmp_path):
    file = tiny.read(tiny.path("qwen3", "q8_0")).with_key("qwen3.pooling_type", raw.U32, 0)
    path = tiny.write(file, tmp_path)
    with npurt.Llama(path, n_ctx=64, progress=False) as llm:
        wanted = llm.embed("An NPU", normalize=False)
    options = {"engine": "npurt.serve.engine", "settings": {"embeddings": True}}
    with serving(tmp_path, path=path, embeddings=True, n_ctx=64, **options) as server:
        (found,) = server.post("/embedding", {"content": "An NPU"})[1]
        refused = server.post("/v1/embeddings", {"input": "An NPU"})

    assert np.array_equal(np.array(found["embedding"], np.float32), wanted)
    assert len(wanted) > 1
    assert refused[0] == 400
    assert "/embedding" in refused[1]["error"]["message"]


@asking
async def test_a_server_of_texts_embeds_none():
    client = Client("x")
    reply = await client("/v1/embeddings", {"input": "a"})
    assert (reply.status, reply.json["error"]["code"]) == (400, "unsupported")
    assert (await client("/embedding", {"content": "a"})).json["error"]["code"] == 400
    assert "--embeddings" in (await client("/api/embeddings", {"prompt": "a"})).json["error"]
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
