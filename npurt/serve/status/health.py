"""/health: whether the server takes requests."""

from npurt.serve.http.endpoint import Answer, Request
from npurt.serve.model.offer import Offers


async def health(offers: Offers, request: Request) -> Answer:
    """Say that all is well, or raise HttpError with 503."""
    offers.require_healthy()
    return {"status": "ok"}
