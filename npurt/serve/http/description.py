"""/openapi.json: the description of all paths, made of what requests are checked against.

Source of the form: OpenAPI Specification 3.1.0, spec.openapis.org/oas/v3.1.0.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from npurt.serve.http import sse
from npurt.serve.http.bodies import BODIES
from npurt.serve.http.errors import HttpError, shaped
from npurt.serve.http.schema import Schema
from npurt.version import __version__

PATH = "/openapi.json"
ABOUT = (
    "The interfaces of OpenAI, Anthropic, Ollama and llama.cpp. OpenAI's paths may lack /v1. "
    "Fields that are not described are ignored."
)
JSON = "application/json"
KEY = {"type": "http", "scheme": "bearer", "description": "where the server has API keys"}
RETRY = {"Retry-After": {"description": "seconds", "schema": {"type": "string"}}}
ERRORS = {  # by status
    "4XX": "The request makes no sense, or there is no room for it (429).",
    "503": "The server loads the model, starts its engine again, or ends.",
    "504": "The request took too long.",
}


def description(
    written: Mapping[str, Callable[..., Any]],
    read: Mapping[str, Callable[..., Any]],
    keyless: Collection[str],
) -> dict[str, Any]:
    """Return the description of a server.

    Args:
        written: What answers requests with a body, by path.
        read: What answers requests without one.
        keyless: Paths that need no key.
    """
    paths: dict[str, Any] = {
        path: {"post": _operation(path, handler, BODIES[path])} for path, handler in written.items()
    }
    for path, handler in read.items():
        operation = _operation(path, handler)
        if path in keyless:
            operation["security"] = []
        paths[path.replace(":path}", "}")] = {"get": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "npurt", "version": __version__, "description": ABOUT},
        "paths": paths,
        "components": {"securitySchemes": {"key": KEY}},
        "security": [{"key": []}, {}],
    }


def _operation(
    path: str, handler: Callable[..., Any], body: Schema | None = None
) -> dict[str, Any]:
    """Return the object of what *handler* does at *path*."""
    answers: dict[str, Any] = {"text/plain" if path == "/metrics" else JSON: {"schema": {}}}
    made: dict[str, Any] = {"summary": (inspect.getdoc(handler) or "").partition("\n")[0]}
    if body is not None:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
        if "stream" in body["properties"]:
            kind = sse.LINES if path.startswith("/api/") else sse.EVENTS.partition(";")[0]
            # Some readers apply the schema to the whole stream, others to each event.
            answers[kind] = {"schema": {}}
    if "{" in path:
        name = path.partition("{")[2].partition(":")[0]
        schema = {"type": "string"}
        made["parameters"] = [{"name": name, "in": "path", "required": True, "schema": schema}]
    example = shaped(HttpError(400, "", remedy=""), path)
    error = {"headers": RETRY, "content": {JSON: {"schema": _schema_of(example)}}}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": answers}}
    responses |= {status: {"description": about, **error} for status, about in ERRORS.items()}
    return made | {"responses": responses}


def _schema_of(example: Any) -> Schema:
    """Return the schema of objects with the fields of *example*; None stands for text or null."""
    if isinstance(example, int):
        return {"type": "integer"}
    if isinstance(example, dict):
        found = {name: _schema_of(value) for name, value in example.items()}
        return {"type": "object", "properties": found, "required": list(found)}
    return {"type": ["string", "null"] if example is None else "string"}
