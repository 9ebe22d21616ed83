"""The models that a server offers: a single one, or several, of which a request names one."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from npurt.serve.front.front import Front, ServerCounts
from npurt.serve.front.model_file import ModelFile
from npurt.serve.http.endpoint import Answer, Handler, HttpRequest
from npurt.serve.http.errors import HttpError, wrong


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """The state of an offered model.

    Attributes:
        model: The model's description.
        counts: The model's counts of requests and tokens.
        status: ``"loaded"``, ``"loading"`` or ``"unloaded"``, as in llama.cpp's router.
        front: The model's front; None while the model is not in use.
        expires: When the model is unloaded without another request, in seconds since 1970; None:
            never.
    """

    model: ModelFile
    counts: ServerCounts
    status: str
    front: Front | None = None
    expires: float | None = None


class ModelPool(Protocol):
    """The models of a server."""

    @property
    def draining(self) -> bool:
        """Whether the server is shutting down and refuses new requests."""

    def using(self, request: HttpRequest) -> AbstractAsyncContextManager[Front]:
        """Return a context with the front of the model that *request* names."""

    def offer(self, request: HttpRequest) -> ModelStatus:
        """Return the model that *request* names, without loading it."""

    def offers(self) -> Sequence[ModelStatus]:
        """Return all models."""

    async def load(self, request: HttpRequest) -> None:
        """Begin to load the model that *request* names, without waiting for the end."""

    def unload(self, request: HttpRequest) -> None:
        """Unload the model that *request* names after its active requests have ended."""

    def require_healthy(self) -> None:
        """Raise HttpError if the server accepts no requests."""

    async def drain(self) -> None:
        """Refuse new requests, and wait for the active ones; end these after a timeout."""

    async def close(self) -> None:
        """End all engines."""


class Only:
    """The `ModelPool` of a server with one model, which is used for any name in a request."""

    def __init__(self, front: Front) -> None:
        self._front = front

    @contextlib.asynccontextmanager
    async def using(self, request: HttpRequest) -> AsyncIterator[Front]:
        """Return a context with the only front."""
        del request
        yield self._front

    @property
    def draining(self) -> bool:
        """Whether the server is shutting down and refuses new requests."""
        return self._front.draining

    def offer(self, request: HttpRequest) -> ModelStatus:
        """Return the only model."""
        del request
        return self.offers()[0]

    def offers(self) -> list[ModelStatus]:
        """Return the only model."""
        front = self._front
        status = "loading" if front.engine.ready is None else "loaded"
        return [ModelStatus(front.model, front.counts, status, front)]

    async def load(self, request: HttpRequest) -> None:
        """Do nothing: the only model is loaded when the server starts."""

    def unload(self, request: HttpRequest) -> None:
        """Raise HttpError: the only model cannot be unloaded."""
        raise wrong(
            f"{self._front.model.name} is the only model, which stays loaded",
            "start the server with --models-dir to load and unload models", "model", "unsupported",
        )  # fmt: skip

    def require_healthy(self) -> None:
        """Raise HttpError if the server accepts no requests, or the engine is lost."""
        self._front.ready()
        if not self._front.engine.alive:
            raise HttpError(
                503, "the engine is being started again", remedy="requests wait for it",
                code="restarting", headers={"Retry-After": "5"},
            )  # fmt: skip

    async def drain(self) -> None:
        """Refuse new requests, and wait for the active ones; end these after a timeout."""
        await self._front.drain()

    async def close(self) -> None:
        """End the engine."""
        await self._front.engine.close()


def by_model(handler: Handler[Front]) -> Handler[ModelPool]:
    """Return a handler that calls *handler* with the front of the model that the request names."""

    async def answer(offers: ModelPool, request: HttpRequest) -> Answer:
        async with offers.using(request) as front:
            return await handler(front, request)

    return answer
