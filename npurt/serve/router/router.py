"""Choose the model of a request, load it on first use, and unload models to free memory.

A model has an `Instance` while it is in use.  A request reads the model's tokenizer; only the first
sequence loads its weights.  Models are loaded one after another, so that the check of free memory
includes all earlier models.  If memory is short, the least recently used model is unloaded, after
its active sequences have ended.  New requests for this model wait until it is loaded again.  So
unloading interrupts no sequence, and no model waits forever for another one (docs/decisions/036).
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from npurt.errors import NpurtError
from npurt.llm.engine.engine import USUAL_SEQUENCES
from npurt.serve.engine.client import EngineClient
from npurt.serve.engine.protocol import MODEL, VERSION, Open, Ready
from npurt.serve.engine.wire import EngineLost
from npurt.serve.front.front import DRAIN_SECONDS, Front, OnDemand, ServerCounts, ServerSettings
from npurt.serve.front.offer import ModelStatus
from npurt.serve.front.served_model import ServedModel
from npurt.serve.http.endpoint import HttpRequest
from npurt.serve.http.errors import HttpError, wrong
from npurt.serve.router.folder import FolderModel
from npurt.serve.router.instance import Instance
from npurt.serve.router.policy import Policy

LISTED = 20  # upper bound on the models that an error message lists
MOMENT = 0.02  # seconds between two checks for active requests

log = logging.getLogger("npurt.serve")


@dataclass(frozen=True, slots=True)
class Launch:
    """The arguments of every engine that the router starts.

    Attributes:
        command: The command line of an engine.
        options: Arguments of `npurt.Engine`.
        stuck: Seconds without a message after which an engine is replaced.
    """

    command: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    stuck: float = 120.0


class Router:
    """The `ModelPool` of a server with several models.

    Attributes:
        draining: Whether the server is shutting down and refuses new requests.
    """

    def __init__(
        self,
        models: Sequence[FolderModel],
        launch: Launch,
        settings: ServerSettings,
        policy: Policy | None = None,
    ) -> None:
        self.draining = False
        self._closing = False
        self._models = {model.name: model for model in models}
        self._counts = {model.name: ServerCounts() for model in models}
        self._launch = launch
        self._settings = settings
        self._policy = policy or Policy()
        self._current: dict[str, Instance] = {}  # instances that accept requests, by model name
        self._held: list[Instance] = []  # instances whose engine uses memory
        self._one_loads = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._waits: set[asyncio.Task[None]] = set()  # for models that are loaded by request

    # --- Requests -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def using(self, request: HttpRequest) -> AsyncIterator[Front]:
        """Return a context with the front of the model that *request* names.

        Raises:
            HttpError: The model does not exist, or its file can no longer be read.
        """
        instance = self._instance(self._chosen(request))
        instance.users += 1
        try:
            yield await asyncio.shield(instance.opening)
        finally:
            instance.users -= 1
            instance.used = asyncio.get_running_loop().time()

    def _chosen(self, request: HttpRequest) -> FolderModel:
        if len(self._models) == 1:
            return next(iter(self._models.values()))  # the only model is used for any name
        name = request.fields.text("model")
        listed = ", ".join(list(self._models)[:LISTED])
        if len(self._models) > LISTED:
            listed += f" and {len(self._models) - LISTED} more, which /v1/models lists"
        if not name:
            raise wrong("the request names no model", f"the models are {listed}", "model")
        found = self._models.get(name) or self._models.get(name.removesuffix(".gguf"))
        if found is None:
            raise HttpError(
                404, f"there is no model {name!r:.100}", remedy=f"the models are {listed}",
                param="model", code="model_not_found",
            )  # fmt: skip
        return found

    def _instance(self, model: FolderModel) -> Instance:
        if self._watching is None:
            self._watching = asyncio.create_task(self._unload_idle())
        found = self._current.get(model.name)
        if found is None:
            found = self._current[model.name] = Instance(model)
            found.opening = asyncio.create_task(self._open(found))
            found.opening.add_done_callback(_take_note)  # all requests may have ended
        return found

    async def _open(self, instance: Instance) -> Front:
        """Read the tokenizer of a model, and return its front."""
        launch = self._launch
        try:
            model, served = await asyncio.to_thread(_read, instance.model)
        except (NpurtError, OSError) as error:
            self._forget(instance)
            raise _unloadable(instance.model, error) from error
        self._models[model.name] = instance.model = model
        settings, options = self._settings, dict(launch.options)
        if model.embeds:
            settings = replace(settings, embeddings=True)
            options = {key: value for key, value in options.items()
                       if key not in ("max_sequences", "kv_bytes", "n_ctx")}  # fmt: skip
            options["embeddings"] = True
        opening = Open(VERSION, str(model.path), options)
        identity = {MODEL: served.identity}
        engine = EngineClient(launch.command, opening, stuck=launch.stuck, identity=identity)
        sequences = 1 if settings.embeddings else options.get("max_sequences") or USUAL_SEQUENCES
        expected = Ready(VERSION, model.positions, sequences, "")
        front = Front(
            served, engine, settings,
            on_demand=OnDemand(expected, lambda: self._start(instance)),
            counts=self._counts[model.name],
        )  # fmt: skip
        front.draining = self.draining
        instance.front = front
        return front

    def _forget(self, instance: Instance) -> None:
        """Remove *instance*, so that the next request for its model creates a new instance."""
        if self._current.get(instance.model.name) is instance:
            del self._current[instance.model.name]

    # --- Loading --------------------------------------------------------------------------------

    def _start(self, instance: Instance) -> None:
        """Start to load an instance, if this has not started yet.

        Raises:
            HttpError: The model can never fit into the memory.
        """
        if instance.loading is not None:
            return
        reason = self._policy.too_large(instance.model)
        if reason is not None:
            raise wrong(
                f"{instance.model.name} needs {reason}",
                "use a smaller model, or start the server with a smaller -c",
                "model", "model_too_large",
            )  # fmt: skip
        instance.loading = asyncio.create_task(self._load(instance))
        instance.loading.add_done_callback(functools.partial(_require_no_bug, instance))

    async def _load(self, instance: Instance) -> None:
        """Load an instance, and watch its engine until it is unloaded."""
        front, name = instance.front, instance.model.name
        assert front is not None
        try:
            async with self._one_loads:
                await self._make_space(instance)
                if not instance.busy:  # all clients disconnected
                    instance.loading = None
                    return
                log.warning("loading %s", name)
                self._held.append(instance)
                await front.engine.start()
            if front.engine.ready is not None:
                log.warning("%s is ready: %s, context of %d", name, front.engine.ready.device,
                            front.engine.ready.n_ctx)  # fmt: skip
            await front.engine.watch()
        except NpurtError as error:
            log.error("%s cannot be loaded: %s", name, error.what)
            self._forget(instance)
            front.fail(_unloadable(instance.model, error))
            await front.engine.close()
            if instance in self._held:
                self._held.remove(instance)

    async def _make_space(self, instance: Instance) -> None:
        """Unload other models until *instance* fits; wait for their active sequences to end.

        Raises:
            HttpError: The model does not fit even if no other model is loaded.
        """
        model = instance.model
        while lack := self._policy.shortage(model, [held.model for held in self._held]):
            ended = [held for held in self._held if held.unloading is not None]
            if not ended:
                ended = sorted(self._held, key=lambda held: (held.busy, held.used))[:1]
            if not ended:
                raise HttpError(
                    503, f"{model.name} needs {lack}", remedy="close other programs",
                    code="no_memory", headers={"Retry-After": "30"},
                )  # fmt: skip
            await asyncio.shield(self._unloading(ended[0]))

    # --- Unloading ------------------------------------------------------------------------------

    def _unloading(self, instance: Instance) -> asyncio.Task[None]:
        """Start to unload an instance; return the task that ends when its memory is free."""
        self._forget(instance)
        if instance.unloading is None:
            instance.unloading = asyncio.create_task(self._unload(instance))
        return instance.unloading

    async def _unload(self, instance: Instance) -> None:
        while instance.busy and not self._closing:
            await asyncio.sleep(MOMENT)
        if instance.loading is not None:
            instance.loading.cancel()
            await asyncio.gather(instance.loading, return_exceptions=True)
        if instance.front is not None:
            await instance.front.engine.close()
        if instance in self._held:
            self._held.remove(instance)
            log.warning("%s is unloaded", instance.model.name)

    async def _unload_idle(self) -> None:
        """Unload each instance whose idle time exceeds the policy's limit."""
        loop, idle = asyncio.get_running_loop(), self._policy.idle
        while idle:
            await asyncio.sleep(min(1.0, idle / 4))
            for instance in list(self._current.values()):
                if instance.busy or instance.status == "loading":
                    instance.used = loop.time()
                elif loop.time() - instance.used >= idle:
                    self._unloading(instance)

    # --- Loading and unloading by request -------------------------------------------------------

    async def load(self, request: HttpRequest) -> None:
        """Begin to load the model that *request* names, without waiting for the end.

        Raises:
            HttpError: The model does not exist, cannot be read, or can never fit into the memory.
        """
        instance = self._instance(self._chosen(request))
        front = await asyncio.shield(instance.opening)
        front.ready()
        self._start(instance)
        instance.users += 1  # a model without users would not be loaded
        task = asyncio.create_task(_wait_until_loaded(instance, front))
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)

    def unload(self, request: HttpRequest) -> None:
        """Begin to unload the model that *request* names; its active requests end before.

        Raises:
            HttpError: The model does not exist, or is not loaded.
        """
        model = self._chosen(request)
        instance = self._current.get(model.name)
        if instance is None or instance.loading is None:
            raise wrong(f"{model.name} is not loaded", "/models tells which models are loaded",
                        "model", "model_not_loaded")  # fmt: skip
        self._unloading(instance)

    # --- The offered models ---------------------------------------------------------------------

    def offers(self) -> Sequence[ModelStatus]:
        """Return all models, in the order of their files."""
        return [self._offer(model) for model in self._models.values()]

    def offer(self, request: HttpRequest) -> ModelStatus:
        """Return the model that *request* names, without loading it."""
        return self._offer(self._chosen(request))

    def _offer(self, model: FolderModel) -> ModelStatus:
        counts, left = (
            self._counts[model.name],
            [h for h in self._held if h.model.name == model.name],
        )
        instance = self._current.get(model.name) or next(iter(left), None)
        if instance is None:
            return ModelStatus(model, counts, "unloaded")
        now, idle = asyncio.get_running_loop().time(), self._policy.idle
        used = now if instance.busy else instance.used
        expires = time.time() + used - now + idle if idle else None
        return ModelStatus(model, counts, instance.status, instance.front, expires)

    def require_healthy(self) -> None:
        """Raise HttpError if the server accepts no requests."""
        if self.draining:
            raise HttpError(
                503, "the server is about to end", remedy="use another server, or try again later",
                code="shutting_down", headers={"Retry-After": "30"},
            )  # fmt: skip

    # --- The end --------------------------------------------------------------------------------

    async def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Refuse new requests, and wait for the active ones; end these after *seconds*."""
        self.draining = True
        fronts = [instance.front for instance in self._all() if instance.front is not None]
        await asyncio.gather(*(front.drain(seconds) for front in fronts))

    def _all(self) -> list[Instance]:
        left = [held for held in self._held if held not in self._current.values()]
        return [*self._current.values(), *left]

    async def close(self) -> None:
        """End all engines."""
        self.draining = self._closing = True
        if self._watching is not None:
            self._watching.cancel()
        for instance in self._all():
            instance.opening.cancel()
        for task in self._waits:
            task.cancel()
        await asyncio.gather(*map(self._unloading, self._all()), return_exceptions=True)


def _read(model: FolderModel) -> tuple[FolderModel, ServedModel]:
    """Return the description and the tokenizer of a model's file, which may have been replaced."""
    served = ServedModel(model.path, model.name)
    while served.identity != model.identity:
        model = model.again()
        served = ServedModel(model.path, model.name)
    return model, served


def _take_note(opening: "asyncio.Task[Front]") -> None:
    """Retrieve the task's exception, so that asyncio logs no warning about it."""
    if not opening.cancelled():
        opening.exception()


async def _wait_until_loaded(instance: Instance, front: Front) -> None:
    """Wait until an instance is loaded, and then remove one of its users."""
    try:
        with contextlib.suppress(HttpError):  # the log has the error
            await front.load()
    finally:
        instance.users -= 1
        instance.used = asyncio.get_running_loop().time()


def _require_no_bug(instance: Instance, loading: asyncio.Task[None]) -> None:
    """End the sequences of an instance whose loading task failed with an unexpected exception."""
    error = None if loading.cancelled() else loading.exception()
    if error is not None and instance.front is not None:
        log.error("%s failed by a bug", instance.model.name, exc_info=error)
        instance.front.fail(HttpError(500, f"{error!r:.200}", remedy="report this as a bug"))


def _unloadable(model: FolderModel, error: Exception) -> HttpError:
    """Return the error of requests for a model that cannot be loaded."""
    if isinstance(error, HttpError):
        return error
    what, remedy = type(error).__name__, "look at what the server printed"
    if isinstance(error, NpurtError):
        what, remedy = error.what, error.remedy
    folder = f"{model.path.parent}/"  # removed from the message: clients need not see it
    return HttpError(
        503 if isinstance(error, EngineLost) else 500,
        f"{model.name} cannot be loaded: {what.replace(folder, '')}",
        remedy=remedy.replace(folder, ""), code="model_load_failed",
    )  # fmt: skip
