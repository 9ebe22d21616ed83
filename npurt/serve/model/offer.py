"""What a server offers: one model, or several of which a request names one."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from npurt.serve.http.endpoint import Answer, Handler, Request
from npurt.serve.http.errors import HttpError
from npurt.serve.model.front import Counts, Front
from npurt.serve.model.model_file import ModelFile


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that is served.

    Attributes:
        status: ``"loaded"``, ``"loading"`` or ``"unloaded"``: the words of llama.cpp's router.
        front: What answers its requests; None while nobody asks it.
        expires: When it is unloaded if nobody asks it, in seconds since 1970; None: never.
    """

    model: ModelFile
    counts: Counts
    status: str
    front: Front | None = None
    expires: float | None = None


class Offers(Protocol):
    """The models of a server."""

    @property
    def draining(self) -> bool:
        """Whether the server is about to end."""

    def using(self, request: Request) -> AbstractAsyncContextManager[Front]:
        """Enter with the front of the model that *request* names, which is kept until the exit."""

    def offer(self, request: Request) -> Offer:
        """Return the model that *request* names, without using it."""

    def offers(self) -> Sequence[Offer]:
        """Return all models."""

    def require_healthy(self) -> None:
        """Raise HttpError if the server takes no requests."""

    async def drain(self) -> None:
        """Take no new requests, and wait for those under way, or end them."""

    async def close(self) -> None:
        """End all engines."""


class Only:
    """A server with one model, which answers to any name; see `Offers`."""

    def __init__(self, front: Front) -> None:
        self._front = front

    @contextlib.asynccontextmanager
    async def using(self, request: Request) -> AsyncIterator[Front]:
        """Enter with the only front."""
        del request
        yield self._front

    @property
    def draining(self) -> bool:
        """Whether the server is about to end."""
        return self._front.draining

    def offer(self, request: Request) -> Offer:
        """Return the only model."""
        del request
        return self.offers()[0]

    def offers(self) -> list[Offer]:
        """Return the only model."""
        front = self._front
        status = "loading" if front.engine.ready is None else "loaded"
        return [Offer(front.model, front.counts, status, front)]

    def require_healthy(self) -> None:
        """Raise HttpError if the server takes no requests, or the engine is lost."""
        self._front.ready()
        if not self._front.engine.alive:
            raise HttpError(
                503, "the engine is being started again", remedy="requests wait for it",
                code="restarting", headers={"Retry-After": "5"},
            )  # fmt: skip

    async def drain(self) -> None:
        """Take no new requests, and wait for those under way, or end them."""
        await self._front.drain()

    async def close(self) -> None:
        """End the engine."""
        await self._front.engine.close()


def by_model(handler: Handler[Front]) -> Handler[Offers]:
    """Return *handler* with the front of the model that the request names."""

    async def answer(offers: Offers, request: Request) -> Answer:
        async with offers.using(request) as front:
            return await handler(front, request)

    return answer
