"""Rerankers over HTTP, in the forms of llama.cpp, Jina, Cohere and text-embeddings-inference."""

import numpy as np
import pytest

import npurt
from tests.llm import tiny
from tests.serve.client import Client, asking
from tests.serve.live import serving

PATHS = ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking", "/v2/rerank"]
DOCUMENTS = ["of values", "x", "the mean of the values"]
BODY = {"query": "the mean", "documents": DOCUMENTS}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A tiny BERT with a classifier."""
    output = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    file = tiny.with_tensor(tiny.read(tiny.path("bert", "bf16")), "cls.output.weight", output)
    return tiny.write(file, tmp_path_factory.mktemp("reranker"))


@pytest.fixture(scope="module")
def server(path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    settings = {"embeddings": True}
    with serving(
        folder, engine="npurt.serve.engine", path=path, settings=settings, embeddings=True
    ) as found:
        yield found


@pytest.fixture(scope="module")
def scores(path):
    with npurt.Llama(path, progress=False) as llm:
        return llm.rerank(BODY["query"], DOCUMENTS)


@pytest.mark.parametrize("alias", PATHS)
def test_documents_are_ordered_by_the_scores_of_the_library(server, scores, alias):
    status, answer = server.post(alias, BODY)
    found = answer["results"]

    assert status == 200
    assert [each["index"] for each in found] == np.argsort(-scores, kind="stable").tolist()
    assert [np.float32(each["relevance_score"]) for each in found] == sorted(scores)[::-1]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 9
    assert answer["object"] == "list"
    assert all(set(each) == {"index", "relevance_score"} for each in found)


def test_the_best_documents_are_returned_with_their_texts(server, scores):
    objects = [{"text": text} for text in DOCUMENTS]
    body = BODY | {"documents": objects, "top_n": 2, "return_documents": True}
    found = server.post("/v1/rerank", body)[1]["results"]

    assert [each["index"] for each in found] == np.argsort(-scores, kind="stable").tolist()[:2]
    assert all(each["document"] == {"text": DOCUMENTS[each["index"]]} for each in found)


def test_texts_get_the_form_of_text_embeddings_inference(server, scores):
    body = {"query": BODY["query"], "texts": DOCUMENTS, "return_text": True}
    found = server.post("/rerank", body)[1]

    assert [np.float32(each["score"]) for each in found] == sorted(scores)[::-1]
    assert all(each["text"] == DOCUMENTS[each["index"]] for each in found)


@pytest.mark.parametrize(
    "wrong",
    [{"documents": []}, {"documents": None}, {"documents": "x"}, {"documents": [5]},
     {"documents": [{"title": "x"}]}, {"query": None}, {"query": 5}, {"top_n": -1},
     {"documents": ["x"] * 2049}, {"documents": ["x", "of " * 600]}],
)  # fmt: skip
def test_a_wrong_request_is_refused_in_the_form_of_its_path(server, wrong):
    for path in ("/rerank", "/v1/rerank"):
        status, answer = server.post(path, BODY | wrong)
        assert status == 400
        assert answer["error"]["code"] == 400 if path == "/rerank" else "param" in answer["error"]
    assert server.post("/rerank", BODY)[0] == 200


def test_a_reranker_has_no_vectors_to_normalise(server, scores):
    status, answer = server.post("/v1/embeddings", {"input": "x"})
    assert status == 200  # the file says how its states are pooled
    assert len(answer["data"][0]["embedding"]) == 64


@asking
async def test_a_model_without_a_classifier_ranks_nothing():
    reply = await Client("x")("/v1/rerank", BODY)
    assert (reply.status, reply.json["error"]["code"]) == (400, "unsupported")
    assert "no reranker" in reply.json["error"]["message"]
