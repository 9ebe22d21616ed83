"""Ollama's interface: the model, read only.

Source of the fields: github.com/ollama/ollama, docs/api.md.
"""

import hashlib
from datetime import UTC, datetime
from typing import Any

from npurt.serve.http.endpoint import Answer, Request
from npurt.serve.model.front import Front
from npurt.serve.model.reading import BEGIN
from npurt.serve.model.served_model import ServedModel
from npurt.version import __version__

FOREVER = "9999-12-31T23:59:59Z"


async def version(front: Front, request: Request) -> Answer:
    """Return the version of npurt."""
    return {"version": __version__}


async def tags(front: Front, request: Request) -> Answer:
    """List the models."""
    return {"models": [described(front.model)]}


async def running(front: Front, request: Request) -> Answer:
    """List the models that are loaded."""
    if front.engine.ready is None:
        return {"models": []}
    loaded = {"expires_at": FOREVER, "size_vram": 0, "context_length": front.engine.ready.n_ctx}
    return {"models": [described(front.model) | loaded]}


async def show(front: Front, request: Request) -> Answer:
    """Describe the model; any name is that of the only one."""
    request.fields.text("model")
    model = front.model
    read = {"tools": "tools" in model.source, "thinking": BEGIN in model.source}
    read["insert"] = model.fills_in
    return {
        "modelfile": "",
        "parameters": "",
        "template": model.source,
        "details": described(model)["details"],
        "model_info": dict(model.metadata),
        "capabilities": ["completion", *(name for name, can in read.items() if can)],
        "modified_at": described(model)["modified_at"],
    }


def described(model: ServedModel) -> dict[str, Any]:
    """Return the object of a model."""
    architecture = str(model.metadata.get("general.architecture", ""))
    changed = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": changed,
        "size": model.nbytes,
        # A name for this file, not a hash of its bytes: that would take seconds.
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
