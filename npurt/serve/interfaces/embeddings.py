"""Embeddings: OpenAI's /v1/embeddings and Ollama's /api/embed."""

import base64
import time
from array import array
from collections.abc import Callable
from typing import TypeVar

from npurt.serve.http import limits
from npurt.serve.http.endpoint import Answer, Request
from npurt.serve.http.errors import wrong
from npurt.serve.http.fields import Fields
from npurt.serve.interfaces.openai_common import are_ids, known
from npurt.serve.model.front import Front, Wanted

MAX_TEXTS = 2048
T = TypeVar("T")


async def embeddings(front: Front, request: Request) -> Answer:
    """Embed a string, token ids, or a list of these."""
    fields = request.fields
    fields.text("model")  # the model was chosen by this field
    form = fields.text("encoding_format", "float")
    texts = await request.in_thread(lambda: _texts(front, fields))
    vectors, tokens = await _vectors(front, texts, request.salt)
    size = fields.integer("dimensions")
    if size is not None and any(len(vector) != size for vector in vectors):
        raise wrong(f"embeddings of {front.model.name} have another size than {size}",
                    "leave dimensions out", "dimensions", "unsupported")  # fmt: skip

    def written(vector: "array[float]") -> list[float] | str:
        return vector.tolist() if form == "float" else base64.b64encode(vector).decode()

    data = [
        {"object": "embedding", "index": i, "embedding": each}
        for i, each in enumerate(await _each(request, written, vectors))
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": front.model.name, "usage": usage}


async def embed(front: Front, request: Request) -> Answer:
    """Embed one or more texts, with a response in Ollama's form."""
    fields, began = request.fields, time.perf_counter_ns()
    fields.text("model")
    texts = await request.in_thread(lambda: _texts(front, fields))
    vectors, tokens = await _vectors(front, texts, request.salt)
    return {
        "model": front.model.name,
        "embeddings": await _each(request, lambda vector: vector.tolist(), vectors),
        "total_duration": time.perf_counter_ns() - began,
        "load_duration": 0,
        "prompt_eval_count": tokens,
    }


async def _each(
    request: Request, written: Callable[["array[float]"], T], vectors: list["array[float]"]
) -> list[T]:
    """Return each of *vectors* as *written* returns it; many vectors are written in a thread."""
    large = sum(map(len, vectors)) > limits.LARGE
    return await request.in_thread(lambda: [written(vector) for vector in vectors], large=large)


def _texts(front: Front, fields: Fields) -> list[list[int]]:
    """Return the token ids of each text in ``input``."""
    name = "input"
    given = fields.values.get(name)
    found = given if isinstance(given, list) and not are_ids(given) else [given]
    if len(found) > MAX_TEXTS:
        raise wrong(f"{name} has {len(found)} texts", f"send {MAX_TEXTS} at most", name)
    ids = []
    for each in found:
        if isinstance(each, str) and each:
            ids.append(front.model.encode_whole(each))
        elif each and are_ids(each):
            ids.append(known(front.model, each, name))
        else:
            raise fields.wrong(name, "a string, token ids, or a list of these; none may be empty")
    return ids


async def _vectors(
    front: Front, texts: list[list[int]], salt: str
) -> tuple[list["array[float]"], int]:
    """Return the float32 vector of each text, and the total number of tokens."""
    running = front.begin(texts, Wanted(embed=True, salt=salt))
    found = [array("f")] * len(texts)
    async for piece in running.pieces():
        if piece is not None and piece.vector is not None:
            found[piece.choice] = array("f", base64.b64decode(piece.vector))
    return found, running.prompt_tokens
