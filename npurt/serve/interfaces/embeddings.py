"""Embeddings: OpenAI's /v1/embeddings, Ollama's /api/embed and /api/embeddings, llama.cpp's form.

Source of the fields of /embedding: llama.cpp tools/server/README.md.
"""

import base64
import time
from array import array
from collections.abc import Callable
from typing import Any, TypeVar

from npurt.llm.file.pooling import Pooling, read_pooling
from npurt.llm.text.pairs import cut
from npurt.serve.front.front import Front, SamplingParams
from npurt.serve.http import limits
from npurt.serve.http.endpoint import Answer, HttpRequest
from npurt.serve.http.errors import wrong
from npurt.serve.http.fields import Fields
from npurt.serve.interfaces.openai_common import are_ids, known

MAXIMUM = 32760.0  # of the values that are normalised by their maximum (embd_normalize 0)
T = TypeVar("T")


async def embeddings(front: Front, request: HttpRequest) -> Answer:
    """Embed a string, token ids, or a list of these."""
    fields = request.fields
    fields.text("model")  # the model was chosen by this field
    form = fields.text("encoding_format", "float")
    texts = await request.in_thread(lambda: _texts(front, fields, "input"))
    _require_pooling(front)
    vectors, tokens = await vectors_of(front, texts, SamplingParams(salt=request.salt))
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


async def embed(front: Front, request: HttpRequest) -> Answer:
    """Embed one or more texts, with a response in Ollama's form.

    As in Ollama, a text that is too long for the context is cut, a request without texts loads the
    model, and the first `dimensions` values of a vector are scaled to length 1 again.
    """
    fields, began = request.fields, time.perf_counter_ns()
    fields.text("model")
    texts: list[list[int]] = []
    if fields.values.get("input") in (None, "", []):
        await front.load()
    else:
        texts = await request.in_thread(lambda: _texts(front, fields, "input"))
    _require_pooling(front)
    if fields.flag("truncate", True):
        texts = [cut(front.model.tokenizer, ids, front.ready().n_ctx) for ids in texts]
    vectors, tokens = await vectors_of(front, texts, SamplingParams(salt=request.salt))
    size = fields.integer("dimensions") or len(vectors[0]) if vectors else 0

    def written(vector: "array[float]") -> list[float]:
        values = vector.tolist()
        return values if size >= len(values) else _normalized(values[:size], 2)

    return {
        "model": front.model.name,
        "embeddings": await _each(request, written, vectors),
        "total_duration": time.perf_counter_ns() - began,
        "load_duration": 0,
        "prompt_eval_count": tokens,
    }


async def embed_prompt(front: Front, request: HttpRequest) -> Answer:
    """Embed one text, with a response in the form of Ollama's older interface.

    As in Ollama, the vector is not normalised, and a request without a prompt loads the model.
    """
    fields = request.fields
    fields.text("model")
    if not fields.text("prompt"):
        await front.load()
        return {"embedding": []}
    texts = await request.in_thread(lambda: _texts(front, fields, "prompt"))
    _require_pooling(front)
    vectors, _ = await vectors_of(front, texts, SamplingParams(salt=request.salt, normalize=False))
    return {"embedding": vectors[0].tolist()}


async def embedding(front: Front, request: HttpRequest) -> Answer:
    """Embed one or more texts, with a response in llama.cpp's form."""
    fields = request.fields
    fields.text("model")
    name = "content" if fields.has("content") else "input"
    texts = await request.in_thread(lambda: _texts(front, fields, name))
    norm = fields.integer("embd_normalize", 2)
    every = _pooling(front) is Pooling.NONE  # a vector for each token, which is not normalised
    wanted = SamplingParams(salt=request.salt, normalize=norm == 2 and not every)
    vectors, _ = await vectors_of(front, texts, wanted)
    found = []
    for i, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
        width = len(vector) // len(text) if every else len(vector)
        rows = [vector[at : at + width].tolist() for at in range(0, len(vector), width)]
        chosen = [row if every or norm == 2 else _normalized(row, norm or 0) for row in rows]
        found.append({"index": i, "embedding": chosen})
    return found


def _normalized(vector: list[float], norm: int) -> list[float]:
    """Return *vector* scaled by llama.cpp's number of a norm.

    -1: unchanged.  0: the largest absolute value becomes `MAXIMUM`.  Others: the p-norm becomes 1.
    """
    if norm == -1:
        return vector
    if norm == 0:
        length = max(map(abs, vector)) / MAXIMUM
    else:
        largest = max(map(abs, vector)) or 1.0  # powers of the ratios to it do not overflow
        length = largest * sum((abs(value) / largest) ** norm for value in vector) ** (1 / norm)
    return [value / length for value in vector] if length else vector


def _pooling(front: Front) -> Pooling:
    return read_pooling(front.model.metadata) or Pooling.MEAN


def _require_pooling(front: Front) -> None:
    """Raise HttpError if the model has a vector for each token, not for each text."""
    if _pooling(front) is Pooling.NONE:
        raise wrong(f"{front.model.name} has a vector for each token: its pooling is none",
                    "use /embedding, which returns all vectors", code="unsupported")  # fmt: skip


async def _each(
    request: HttpRequest, written: Callable[["array[float]"], T], vectors: list["array[float]"]
) -> list[T]:
    """Return each of *vectors* as *written* returns it; many vectors are written in a thread."""
    large = sum(map(len, vectors)) > limits.LARGE
    return await request.in_thread(lambda: [written(vector) for vector in vectors], large=large)


def _texts(front: Front, fields: Fields, name: str) -> list[list[int]]:
    """Return the token ids of each text in the field *name*."""
    given = fields.values.get(name)
    found: list[Any] = given if isinstance(given, list) and not are_ids(given) else [given]
    if len(found) > limits.TEXTS:
        raise wrong(f"{name} has {len(found)} texts", f"send {limits.TEXTS} at most", name)
    ids = []
    for each in found:
        if isinstance(each, str) and each:
            ids.append(front.model.encode_whole(each))
        elif each and are_ids(each):
            ids.append(known(front.model, each, name))
        else:
            raise fields.wrong(name, "a string, token ids, or a list of these; none may be empty")
    return ids


async def vectors_of(
    front: Front, texts: list[list[int]], wanted: SamplingParams
) -> tuple[list["array[float]"], int]:
    """Return the float32 vector of each text, and the total number of tokens."""
    wanted.embed = True
    running = front.begin(texts, wanted)
    found = [array("f")] * len(texts)
    async for piece in running.pieces():
        if piece is not None and piece.vector is not None:
            found[piece.choice] = array("f", base64.b64decode(piece.vector))
    return found, running.prompt_tokens
