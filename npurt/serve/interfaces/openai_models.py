"""OpenAI's interface: /v1/models; and llama.cpp's /models/load and /models/unload."""

from typing import Any

from npurt.serve.front.offer import ModelPool, ModelStatus
from npurt.serve.http.endpoint import Answer, HttpRequest
from npurt.serve.http.errors import HttpError


async def models(offers: ModelPool, request: HttpRequest) -> Answer:
    """List the models."""
    return {"object": "list", "data": [described(offer) for offer in offers.offers()]}


async def model(offers: ModelPool, request: HttpRequest) -> Answer:
    """Describe one model."""
    name = request.parameters["name"]
    for offer in offers.offers():
        if {name, name.removesuffix(".gguf")} & {offer.model.name, *offer.model.aliases}:
            return described(offer)
    raise HttpError(
        404, f"there is no model {name!r:.100}", remedy="/v1/models lists the models",
        param="model", code="model_not_found",
    )  # fmt: skip


def described(offer: ModelStatus) -> dict[str, Any]:
    """Return a model's object in OpenAI's form, with ``status`` as in llama.cpp's router."""
    model = offer.model
    ready = offer.front.engine.ready if offer.front else None
    return {
        "id": model.name,
        "aliases": model.aliases,
        "object": "model",
        "created": model.created,
        "owned_by": "npurt",
        "status": {"value": offer.status},
        "meta": {
            **({} if ready is None else {"n_ctx": ready.n_ctx}),
            "n_vocab": model.n_vocab,
            "size": model.nbytes,
        },
    }


async def load(offers: ModelPool, request: HttpRequest) -> Answer:
    """Begin to load a model."""
    await offers.load(request)
    return {"success": True}


async def unload(offers: ModelPool, request: HttpRequest) -> Answer:
    """Begin to unload a model, after its active requests."""
    offers.unload(request)
    return {"success": True}
