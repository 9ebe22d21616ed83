"""The application: which path means what."""

import re
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from npurt.serve import ollama, ollama_models
from npurt.serve.auth import Guard
from npurt.serve.embeddings import embed, embeddings
from npurt.serve.endpoint import Endpoint, Handler
from npurt.serve.errors import HttpError, shaped
from npurt.serve.front import Front
from npurt.serve.health import health
from npurt.serve.llama_cpp import completion, infill
from npurt.serve.llama_cpp_texts import apply_template, detokenize, props, tokenize
from npurt.serve.messages import answer, count_tokens
from npurt.serve.metrics import metrics
from npurt.serve.openai_chat import chat
from npurt.serve.openai_models import model, models
from npurt.serve.openai_text import completions
from npurt.serve.page import STATE, state
from npurt.serve.page import routes as page_routes
from npurt.serve.responses import respond

OPENAI: dict[str, Handler] = {  # with and without /v1 before them
    "/chat/completions": chat,
    "/completions": completions,
    "/responses": respond,
    "/embeddings": embeddings,
}
LLAMA_CPP: dict[str, Handler] = {
    "/completion": completion,
    "/infill": infill,
    "/tokenize": tokenize,
    "/detokenize": detokenize,
    "/apply-template": apply_template,
}
ANTHROPIC: dict[str, Handler] = {
    "/v1/messages": answer,
    "/v1/messages/count_tokens": count_tokens,
}
OLLAMA: dict[str, Handler] = {
    "/api/chat": ollama.chat,
    "/api/generate": ollama.generate,
    "/api/show": ollama_models.show,
    "/api/embed": embed,
}
READ: dict[str, Handler] = {
    "/v1/models": models,
    "/models": models,
    "/v1/models/{name:path}": model,
    "/health": health,
    "/v1/health": health,
    "/metrics": metrics,
    "/props": props,
    "/api/version": ollama_models.version,
    "/api/tags": ollama_models.tags,
    "/api/ps": ollama_models.running,
}


def application(
    front: Front,
    *,
    keys: Sequence[str] = (),
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    page: bool = True,
) -> ASGIApp:
    """Return the ASGI application of *front*.

    Args:
        front: What answers.
        keys, hosts, origins: See `Guard`.
        page: Serve the chat page at `/`.
    """
    written = {f"{prefix}{path}": made for path, made in OPENAI.items() for prefix in ("", "/v1")}
    written |= LLAMA_CPP | ANTHROPIC | OLLAMA
    read = READ | ({STATE: state} if page else {})
    routes = [
        *(Route(path, Endpoint(front, made), methods=["POST"]) for path, made in written.items()),
        *(
            Route(path, Endpoint(front, made, body=False), methods=["GET"])
            for path, made in read.items()
        ),
        *(page_routes() if page else ()),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _unrouted})
    app.router.redirect_slashes = False
    return _plain_paths(Guard(app, keys, hosts, origins))


async def _unrouted(request: Request, error: Exception) -> Response:
    """Answer a path or a method that is not known, in the shape of its interface."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    known = HttpError(
        error.status_code,
        f"there is no {what:.200}" if error.status_code == 404 else f"{what:.200} is not possible",
        remedy="the paths are listed in docs/serving.md",
        code="not_found" if error.status_code == 404 else "method_not_allowed",
    )
    body = shaped(known, request.url.path)
    return JSONResponse(body, error.status_code, dict(error.headers or {}))


def _plain_paths(app: ASGIApp) -> ASGIApp:
    """Return *app* with paths that have no slash at the end, and none twice."""

    async def plain(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = re.sub("/+", "/", scope["path"])
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await app(scope, receive, send)

    return plain
