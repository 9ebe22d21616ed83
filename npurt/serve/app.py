"""Build the ASGI application: map each path to its handler.

May import every package of `npurt.serve` except `run`.
"""

import re
from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from npurt.serve.front.front import Front
from npurt.serve.front.offer import ModelPool, Only, by_model
from npurt.serve.http.auth import AccessMiddleware
from npurt.serve.http.bodies import BODIES
from npurt.serve.http.description import PATH, description
from npurt.serve.http.endpoint import Answer, Endpoint, Handler, HttpRequest
from npurt.serve.http.errors import HttpError, shaped
from npurt.serve.http.log import refused
from npurt.serve.interfaces import ollama, ollama_models
from npurt.serve.interfaces.anthropic import answer as message
from npurt.serve.interfaces.anthropic import count_tokens
from npurt.serve.interfaces.embeddings import embed, embed_prompt, embedding, embeddings
from npurt.serve.interfaces.llama_cpp import completion, infill
from npurt.serve.interfaces.llama_cpp_texts import (
    apply_template,
    detokenize,
    lora_adapters,
    props,
    set_adapters,
    slots,
    tokenize,
)
from npurt.serve.interfaces.openai_chat import chat
from npurt.serve.interfaces.openai_chat import count_input as count_chat
from npurt.serve.interfaces.openai_models import load, model, models, unload
from npurt.serve.interfaces.openai_responses import count_input, respond
from npurt.serve.interfaces.openai_text import completions
from npurt.serve.interfaces.rerank import rerank
from npurt.serve.page import FILES, STATE, state
from npurt.serve.page import routes as page_routes
from npurt.serve.status.health import health
from npurt.serve.status.metrics import metrics

OPENAI: dict[str, Handler[Front]] = {  # also without /v1
    "/v1/chat/completions": chat,
    "/v1/completions": completions,
    "/v1/responses": respond,
    "/v1/embeddings": embeddings,
    "/v1/chat/completions/input_tokens": count_chat,
    "/v1/responses/input_tokens": count_input,
}
LLAMA_CPP: dict[str, Handler[Front]] = {
    "/completion": completion,
    "/infill": infill,
    "/embedding": embedding,
    "/lora-adapters": set_adapters,
    **dict.fromkeys(("/v1/rerank", "/v1/reranking", "/v2/rerank", "/rerank", "/reranking"), rerank),
    "/tokenize": tokenize,
    "/detokenize": detokenize,
    "/apply-template": apply_template,
}
ANTHROPIC: dict[str, Handler[Front]] = {
    "/v1/messages": message,
    "/v1/messages/count_tokens": count_tokens,
}
OLLAMA: dict[str, Handler[Front]] = {
    "/api/chat": ollama.chat,
    "/api/generate": ollama.generate,
    "/api/show": ollama_models.show,
    "/api/embed": embed,
    "/api/embeddings": embed_prompt,
}
POOL: dict[str, Handler[ModelPool]] = {"/models/load": load, "/models/unload": unload}
READ: dict[str, Handler[ModelPool]] = {
    "/v1/models": models,
    "/models": models,
    "/v1/models/{name:path}": model,
    "/health": health,
    "/v1/health": health,
    "/metrics": metrics,
    "/props": props,
    "/slots": slots,
    "/lora-adapters": lora_adapters,
    "/api/version": ollama_models.version,
    "/api/tags": ollama_models.tags,
    "/api/ps": ollama_models.running,
}
PUBLIC = {"/health", "/v1/health", PATH, *FILES}  # paths that need no key


def application(
    served: Front | ModelPool,
    *,
    keys: Sequence[str] = (),
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    page: bool = True,
) -> ASGIApp:
    """Return the ASGI application of a server.

    Args:
        served: The front of the only model, or the `ModelPool` of several models.
        keys, hosts, origins: See `AccessMiddleware`.
        page: Serve the chat page at `/`.
    """
    offers = Only(served) if isinstance(served, Front) else served
    written = OPENAI | LLAMA_CPP | ANTHROPIC | OLLAMA
    answers = {
        path: Endpoint(offers, by_model(made), BODIES[path]) for path, made in written.items()
    }
    answers |= {path.removeprefix("/v1"): answers[path] for path in OPENAI}
    answers |= {path: Endpoint(offers, made, BODIES[path]) for path, made in POOL.items()}
    published = description(written | POOL, READ, PUBLIC)

    async def described(offers: object, request: HttpRequest) -> Answer:
        return published

    read = READ | {PATH: described} | ({STATE: state} if page else {})
    routes = [
        *(Route(path, answer, methods=["POST"]) for path, answer in answers.items()),
        *(Route(path, Endpoint(offers, made), methods=["GET"]) for path, made in read.items()),
        *(page_routes() if page else ()),
    ]
    app = _answering(Router(routes, redirect_slashes=False))
    return _plain_paths(AccessMiddleware(app, keys, hosts, origins, PUBLIC))


def _answering(router: Router) -> ASGIApp:
    """Return *router* with error responses for unknown paths and methods.

    The class `Starlette` does this in middleware, which every chunk of a stream would pass through.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # With "app" in the scope, the router raises HTTPException for an unknown path.
            await router({**scope, "app": app}, receive, send)
        except HTTPException as error:
            await _unrouted(scope, error)(scope, receive, send)

    return app


def _unrouted(scope: Scope, error: HTTPException) -> Response:
    """Return the error response for an unknown path or method, in the form of its interface."""
    what = f"{scope['method']} {scope['path']}"
    known = HttpError(
        error.status_code,
        f"there is no {what:.200}" if error.status_code == 404 else f"{what:.200} is not possible",
        remedy="GET /openapi.json lists the paths",
        code="not_found" if error.status_code == 404 else "method_not_allowed",
    )
    refused(scope, error.status_code)
    body = shaped(known, scope["path"])
    return JSONResponse(body, error.status_code, dict(error.headers or {}))


def _plain_paths(app: ASGIApp) -> ASGIApp:
    """Return *app* behind a filter that removes trailing and repeated slashes from paths."""

    async def plain(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = re.sub("/+", "/", scope["path"])
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await app(scope, receive, send)

    return plain
