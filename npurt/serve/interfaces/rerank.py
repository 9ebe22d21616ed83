"""/rerank and its aliases: the relevance of documents to a query, as in llama.cpp, Jina and Cohere.

Sources of the fields: llama.cpp tools/server/README.md; api.jina.ai; docs.cohere.com/reference;
for ``texts``, huggingface.co/docs/text-embeddings-inference.
"""

from collections.abc import Sequence
from typing import Any

from npurt.serve.front.front import Front, SamplingParams
from npurt.serve.http.endpoint import Answer, HttpRequest
from npurt.serve.http.fields import Fields
from npurt.serve.interfaces.embeddings import vectors_of
from npurt.serve.interfaces.openai_common import new_id


async def rerank(front: Front, request: HttpRequest) -> Answer:
    """Order documents by their relevance to a query."""
    fields = request.fields
    fields.text("model")  # the model was chosen by this field
    query = fields.required_text("query")
    name = "texts" if fields.has("texts") else "documents"
    documents = _documents(fields, name)
    pairs = await request.in_thread(
        lambda: [front.model.encode_pair(query, document) for document in documents]
    )
    wanted = SamplingParams(salt=request.salt, pairs=[second for _, second in pairs])
    vectors, tokens = await vectors_of(front, [ids for ids, _ in pairs], wanted)
    scores = [vector[0] for vector in vectors]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    shown = order[: fields.integer("top_n", len(order))]
    if name == "texts":  # the form of text-embeddings-inference
        return [_result("score", i, scores, documents, fields.flag("return_text")) for i in shown]
    whole = fields.flag("return_documents")
    return {
        "id": new_id("rerank"),
        "object": "list",
        "model": front.model.name,
        "results": [_result("relevance_score", i, scores, documents, whole) for i in shown],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _result(
    name: str, i: int, scores: Sequence[float], documents: Sequence[str], whole: bool
) -> dict[str, Any]:
    """Return the result of document *i*, with its text if *whole*; *name* is the score's field."""
    text: dict[str, Any] = {}
    if whole:
        text = {"text": documents[i]} if name == "score" else {"document": {"text": documents[i]}}
    return {"index": i, name: scores[i], **text}


def _documents(fields: Fields, name: str) -> list[str]:
    """Return the documents in the field *name*: strings, or objects with the field ``text``."""
    given = fields.items(name)
    if not given:
        raise fields.wrong(name, "a list of at least one string")
    return [
        each if isinstance(each, str) else Fields(each, f"{name}[{i}]").required_text("text")
        for i, each in enumerate(given)
    ]
