"""What a server offers: one model, or several of which a request names one."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from npurt.serve.http.endpoint import Answer, Handler, Request
from npurt.serve.model.model_file import ModelFile

if TYPE_CHECKING:
    from npurt.serve.model.front import Counts, Front


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that is served.

    Attributes:
        status: ``"loaded"``, ``"loading"`` or ``"unloaded"``: the words of llama.cpp's router.
        front: What answers its requests; None while nobody asks it.
        expires: When it is unloaded if nobody asks it, in seconds since 1970; None: never.
    """

    model: ModelFile
    counts: "Counts"
    status: str
    front: "Front | None" = None
    expires: float | None = None


class Offers(Protocol):
    """The models of a server."""

    def using(self, request: Request) -> "AbstractAsyncContextManager[Front]":
        """Enter with the front of the model that *request* names, which is kept until the exit."""

    def offers(self) -> Sequence[Offer]:
        """Return all models."""

    def require_healthy(self) -> None:
        """Raise HttpError if the server takes no requests."""

    async def drain(self) -> None:
        """Take no new requests, and wait for those under way, or end them."""

    async def close(self) -> None:
        """End all engines."""


def by_model(handler: "Handler[Front]") -> Handler[Offers]:
    """Return *handler* with the front of the model that the request names."""

    async def answer(offers: Offers, request: Request) -> Answer:
        async with offers.using(request) as front:
            return await handler(front, request)

    return answer
