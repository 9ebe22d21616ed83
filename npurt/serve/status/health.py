"""/health: whether the server accepts requests."""

from npurt.serve.front.offer import ModelPool
from npurt.serve.http.endpoint import Answer, HttpRequest


async def health(offers: ModelPool, request: HttpRequest) -> Answer:
    """Return the status "ok"; raise HttpError (503) if the server accepts no requests."""
    offers.require_healthy()
    return {"status": "ok"}
