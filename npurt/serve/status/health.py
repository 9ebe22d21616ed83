"""/health: whether the server accepts requests."""

from npurt.serve.http.endpoint import Answer, Request
from npurt.serve.model.offer import ModelPool


async def health(offers: ModelPool, request: Request) -> Answer:
    """Return the status "ok"; raise HttpError (503) if the server accepts no requests."""
    offers.require_healthy()
    return {"status": "ok"}
