"""/health: whether the server takes requests."""

from npurt.serve.http.endpoint import Answer, Request
from npurt.serve.http.errors import HttpError
from npurt.serve.model.front import Front


async def health(front: Front, request: Request) -> Answer:
    """Say that all is well, or raise HttpError with 503."""
    front.ready()
    if not front.engine.alive:
        raise HttpError(
            503, "the engine is being started again", remedy="requests wait for it",
            code="restarting", headers={"Retry-After": "5"},
        )  # fmt: skip
    return {"status": "ok"}
