"""Serve the chat page at `/`: the static files of this folder, and the server's state for the page.

May import the packages `status`, `front` and `http`.
"""

import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from npurt.serve.front.front import Front
from npurt.serve.front.offer import ModelPool
from npurt.serve.http.endpoint import Answer, HttpRequest
from npurt.serve.status.metrics import engine_stats, npu_share, values
from npurt.settings import HOSTS
from npurt.version import __version__

# Files by path.  They contain no secrets, so requests for them need no API key.
FILES = {
    "/": "index.html",
    **{
        f"/page/{name}": name
        for name in (
            "answer.js",
            "chats.js",
            "code.js",
            "icon.svg",
            "main.js",
            "markdown.js",
            "math.js",
            "prompt.js",
            "server.js",
            "status.js",
            "style.css",
            "view.js",
        )
    },
}
STATE = "/page/state"
TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS = {
    "Cache-Control": "no-cache",  # the browser revalidates each time, and usually gets 304
    # Scripts, styles and requests are limited to this server.  The last two directives make the
    # browser refuse every string that a script would parse as HTML.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'; trusted-types 'none'; "
    "require-trusted-types-for 'script'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def routes() -> list[Route]:
    """Return the routes of the static files."""
    return [Route(path, _file(name), methods=["GET"]) for path, name in FILES.items()]


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that sends the file *name*."""
    data = (files(__package__) / name).read_bytes()
    headers = {**HEADERS, "ETag": f'"{hashlib.sha256(data).hexdigest()[:32]}"'}
    kind = TYPES[name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if headers["ETag"] in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers, media_type=kind)

    return answer


async def state(offers: ModelPool, request: HttpRequest) -> Answer:
    """Return the state of a model that the page shows: its device, queue, pages and counts.

    A count is null if the engine does not have it or did not answer in time.
    """
    offer = offers.offer(request)
    engine = await engine_stats(offer)
    front, counts = offer.front, values(offer, engine)
    ready = front.engine.ready if front else None
    known = ("pages", "used", "prefixes", "fallbacks", "verified", "wrong", "steps")
    return {
        "model": offer.model.name,
        "status": offer.status,
        "version": __version__,
        "ready": ready is not None and bool(counts["npurt:ready"]) and not offers.draining,
        "device": ready.device if ready else None,
        "npu": ready.device not in HOSTS if ready else None,
        "npu_share": npu_share(engine),
        "context": ready.n_ctx if ready else None,
        "sequences": ready.sequences if ready else None,
        "running": counts["llamacpp:requests_processing"],
        "waiting": counts["llamacpp:requests_deferred"],
        "restarts": counts["npurt:engine_restarts"],
        "defaults": _defaults(front) if front else None,
        **{name: engine.get(name) for name in known},
    }


def _defaults(front: Front) -> dict[str, float]:
    """Return the settings that are numbers, which apply to requests that do not set them."""
    chosen = {**front.settings.sampling, "max_tokens": front.settings.max_tokens}
    return {name: value for name, value in chosen.items() if isinstance(value, int | float)}
