"""OpenAI's interface: /v1/models."""

from typing import Any

from npurt.serve.http.endpoint import Answer, Request
from npurt.serve.http.errors import HttpError
from npurt.serve.model.front import Front


async def models(front: Front, request: Request) -> Answer:
    """List the models."""
    return {"object": "list", "data": [described(front)]}


async def model(front: Front, request: Request) -> Answer:
    """Describe one model."""
    name = request.parameters["name"]
    if name != front.model.name:
        raise HttpError(
            404, f"there is no model {name!r:.100}", remedy="/v1/models lists the models",
            param="model", code="model_not_found",
        )  # fmt: skip
    return described(front)


def described(front: Front) -> dict[str, Any]:
    """Return the object of the model."""
    meta = {} if front.engine.ready is None else {"n_ctx": front.engine.ready.n_ctx}
    return {
        "id": front.model.name,
        "object": "model",
        "created": front.model.created,
        "owned_by": "npurt",
        "meta": {
            **meta,
            "n_vocab": front.model.tokenizer.n_vocab,
            "size": front.model.nbytes,
        },
    }
