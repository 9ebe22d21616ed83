"""/openapi.json: the description of all paths, made from the schemas that check requests.

Source of the format: OpenAPI Specification 3.1.0, spec.openapis.org/oas/v3.1.0.
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
    "The interfaces of OpenAI, Anthropic, Ollama and llama.cpp. OpenAI's paths work without /v1 "
    "as well. Fields that are not described are ignored."
)
JSON = "application/json"
KEY = {"type": "http", "scheme": "bearer", "description": "required if the server has API keys"}
RETRY = {"Retry-After": {"description": "seconds", "schema": {"type": "string"}}}
ERRORS = {  # by status
    "4XX": "The request is invalid, or the queue is full (429).",
    "503": "The server loads the model, restarts its engine, or shuts down.",
    "504": "The request exceeded its deadline.",
}


def description(
    written: Mapping[str, Callable[..., Any]],
    read: Mapping[str, Callable[..., Any]],
    keyless: Collection[str],
) -> dict[str, Any]:
    """Return the OpenAPI document of a server.

    Args:
        written: The handlers of requests with a body, by path.
        read: The handlers of requests without a body, by path.
        keyless: Paths that need no API key.
    """
    paths: dict[str, Any] = {
        path: {"post": _operation(path, handler, BODIES[path])} for path, handler in written.items()
    }
    for path, handler in read.items():
        operation = _operation(path, handler)
        if path in keyless:
            operation["security"] = []
        paths.setdefault(path.replace(":path}", "}"), {})["get"] = operation
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
    """Return OpenAPI's operation object of *handler* at *path*."""
    answers: dict[str, Any] = {"text/plain" if path == "/metrics" else JSON: {"schema": {}}}
    made: dict[str, Any] = {"summary": (inspect.getdoc(handler) or "").partition("\n")[0]}
    if body is not None:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
        if "stream" in body.get("properties", ()):
            kind = sse.LINES if path.startswith("/api/") else sse.EVENTS.partition(";")[0]
            # The schema of a stream is empty: some readers of OpenAPI apply a schema to the whole
            # stream, others to each event.
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
    """Return the schema of objects like *example*; a value None becomes "string or null"."""
    if isinstance(example, int):
        return {"type": "integer"}
    if isinstance(example, dict):
        found = {name: _schema_of(value) for name, value in example.items()}
        return {"type": "object", "properties": found, "required": list(found)}
    return {"type": ["string", "null"] if example is None else "string"}
