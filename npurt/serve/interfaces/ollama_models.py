"""Ollama's interface: the models, read only.

Source of the fields: github.com/ollama/ollama, docs/api.md.
"""

import hashlib
from datetime import UTC, datetime
from typing import Any

from npurt.llm.decode.calls.reading import BEGIN
from npurt.serve.front.front import Front
from npurt.serve.front.model_file import ModelFile
from npurt.serve.front.offer import ModelPool
from npurt.serve.http.endpoint import Answer, HttpRequest
from npurt.version import __version__

FOREVER = "9999-12-31T23:59:59Z"


async def version(offers: ModelPool, request: HttpRequest) -> Answer:
    """Return the version of npurt."""
    return {"version": __version__}


async def tags(offers: ModelPool, request: HttpRequest) -> Answer:
    """List the models."""
    return {"models": [described(offer.model) for offer in offers.offers()]}


async def running(offers: ModelPool, request: HttpRequest) -> Answer:
    """List the models that are loaded."""
    return {
        "models": [
            described(offer.model)
            | {
                "expires_at": FOREVER if offer.expires is None else _written(offer.expires),
                "size_vram": 0,
                "context_length": offer.front.engine.ready.n_ctx,
            }
            for offer in offers.offers()
            if offer.front is not None and offer.front.engine.ready is not None
        ]
    }


async def show(front: Front, request: HttpRequest) -> Answer:
    """Describe the model that the request names."""
    request.fields.text("model")
    model = front.model
    read = {"tools": "tools" in model.source, "thinking": BEGIN in model.source}
    read["insert"] = model.fills_in
    kind = "embedding" if front.settings.embeddings else "completion"
    return {
        "modelfile": "",
        "parameters": "",
        "template": model.source,
        "details": described(model)["details"],
        "model_info": dict(model.metadata),
        "capabilities": [kind, *(name for name, can in read.items() if can)],
        "modified_at": described(model)["modified_at"],
    }


def _written(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z")


def described(model: ModelFile) -> dict[str, Any]:
    """Return a model's object in Ollama's form."""
    architecture = str(model.metadata.get("general.architecture", ""))
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": _written(model.created),
        "size": model.nbytes,
        # A hash of the file's description; hashing the file's bytes would take seconds.
        "digest": hashlib.sha256(model.fingerprint.encode()).hexdigest(),
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": architecture,
            "families": [architecture],
            "parameter_size": str(model.metadata.get("general.size_label", "")),
            "quantization_level": "",
        },
    }
