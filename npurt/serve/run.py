"""Run the server: listen, open the model, answer until a signal, finish what is under way.

May import every room.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from npurt.errors import NpurtError
from npurt.serve.app import application
from npurt.serve.engine.client import Engine
from npurt.serve.engine.protocol import VERSION, Open
from npurt.serve.http import limits
from npurt.serve.http.address import Address
from npurt.serve.model.front import DRAIN_SECONDS, Front, Settings
from npurt.serve.model.offer import Offers, Only
from npurt.serve.model.served_model import ServedModel

if TYPE_CHECKING:
    from npurt.serve.models.folder import FolderModel
    from npurt.serve.models.policy import Policy

IDLE_SECONDS = 30  # that a connection may be idle between two requests
ENGINE = (sys.executable, "-m", "npurt.serve.engine")

log = logging.getLogger("npurt.serve")


class Timer:
    """Calls *call* some seconds after `start`, unless `stop` comes before."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """Begin to wait, if it does not wait already."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(seconds, self._call)

    def stop(self) -> None:
        """Stop waiting."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class ChunkedConnection(h11.Connection):
    """HTTP of a connection that writes the parts of a stream itself, in less time than h11.

    It also refuses headers that h11 accepts: see `_require_sound`.

    Args:
        gone: Says whether the client has gone: then no part is written.
    """

    def __init__(self, gone: Callable[[], bool]) -> None:
        super().__init__(h11.SERVER, limits.HEAD)
        self._gone = gone
        self._chunked = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return what the client sent next."""
        event = super().next_event()
        if type(event) is h11.Request:
            _require_sound(event)
        return event

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]
        """Return *event* as bytes."""
        if self._chunked and type(event) is h11.Data and self.our_state is h11.SEND_BODY:
            if not event.data or self._gone():
                return b""
            return b"%x\r\n%b\r\n" % (len(event.data), event.data)
        sent = super().send(event)
        if type(event) is h11.Response and sent is not None:
            self._chunked = b"\r\ntransfer-encoding: chunked\r\n" in sent.lower()
        return sent


def _require_sound(request: h11.Request) -> None:
    """Refuse headers that are too large, and two lengths of one body.

    h11 accepts large headers that arrive at once.  A proxy may believe the other length, and take a
    part of the body for a request (RFC 9112, 6.1).

    Raises:
        h11.RemoteProtocolError: The answer is 400, and the connection ends.
    """
    lines = (len(name) + len(value) + 4 for name, value in request.headers)
    if len(request.target) + sum(lines) > limits.HEAD:
        raise h11.RemoteProtocolError(f"the headers have more than {limits.HEAD} bytes")
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:
        raise h11.RemoteProtocolError("the body has a length and is chunked as well")


class Protocol(H11Protocol):
    """HTTP of a connection, which ends when headers do not arrive, or answers are not taken."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.conn = ChunkedConnection(transport.is_closing)
        self._late = Timer(transport.abort)  # runs while headers are to arrive
        self._stalled = Timer(transport.abort)  # runs while the client takes nothing
        self._late.start(limits.HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Take *data*; wait for the end of headers that have begun, of any request."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._late.stop()
        elif self.conn.trailing_data[0]:
            self._late.start(limits.HEAD_SECONDS)

    def pause_writing(self) -> None:
        """Wait until the client takes what was sent."""
        super().pause_writing()
        self._stalled.start(limits.SEND_SECONDS)

    def resume_writing(self) -> None:
        """Stop waiting: it did."""
        self._stalled.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._late.stop()
        self._stalled.stop()
        super().connection_lost(exc)


class Server(uvicorn.Server):
    """A server that finishes what is under way when a signal comes; a second one ends it at once.

    Attributes:
        status: 128 and the number of the signal, or 0.
    """

    def __init__(self, app: ASGIApp, offers: Offers) -> None:
        super().__init__(uvicorn.Config(
            app, http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=5,
        ))  # fmt: skip
        self.status = 0
        self._offers = offers
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end."""
        if self.status:
            self.should_exit = self.force_exit = True
        self.status = 128 + sig
        self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._finish())

    async def _finish(self) -> None:
        log.warning("no new requests; those under way get %.0f s", DRAIN_SECONDS)
        await self._offers.drain()
        self.should_exit = True


@dataclass(frozen=True, slots=True)
class Start:
    """What the server is started with.

    Attributes:
        model: The front's view of the model; or several, which are loaded when they are used.
        policy: When several are loaded and unloaded; needed for them alone.
        options: Arguments of `npurt.Llama`.
        stuck: Seconds after which an engine that says nothing is replaced.
        command: What starts an engine.
        page: Serve the chat page at `/`.
    """

    model: "ServedModel | Sequence[FolderModel]"
    address: Address = field(default_factory=Address)
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    stuck: float = 120.0
    command: Sequence[str] = ENGINE
    page: bool = True
    policy: "Policy | None" = None


def run(start: Start) -> int:
    """Serve until a signal; return the exit status.

    Raises:
        NpurtError: The server cannot listen at the address, or the model cannot be opened.
    """
    address = start.address
    address.require_safe()
    if address.is_open:
        log.warning("everyone who reaches %s can use the model: there is no key", address.host)
    with address.listen() as listening:
        return asyncio.run(_serve(start, listening))


async def _serve(start: Start, listening: socket.socket) -> int:
    address, engine = start.address, None
    offers: Offers
    if isinstance(start.model, ServedModel):
        opening = Open(VERSION, str(start.model.path), start.options)
        engine = Engine(start.command, opening, stuck=start.stuck)
        offers = Only(Front(start.model, engine, start.settings))
        named = start.model.name
    else:
        from npurt.serve.models.router import Launch, Router  # 10 MB that one model does not need

        launch = Launch(start.command, start.options, start.stuck)
        offers = Router(start.model, launch, start.settings, start.policy)
        named = f"{len(start.model)} models"
    app = application(
        offers, keys=address.keys, hosts=address.hosts, origins=address.origins, page=start.page
    )
    server = Server(app, offers)
    host, port = listening.getsockname()[:2]
    log.warning("%s at http://%s:%d", named, f"[{host}]" if ":" in host else host, port)
    serving = asyncio.create_task(server.serve([listening]))
    try:
        if engine is not None:
            await _run_engine(engine, serving)
        await serving
    finally:
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        await offers.close()
    return server.status


async def _run_engine(engine: Engine, serving: asyncio.Task[None]) -> None:
    """Open the only model, and watch its engine while the server runs."""
    opening = asyncio.create_task(engine.start())
    try:
        await asyncio.wait((serving, opening), return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            return
        _raise(opening)
        if engine.ready is not None:
            log.warning("ready: %s, context of %d", engine.ready.device, engine.ready.n_ctx)
        watching = asyncio.create_task(engine.watch())
        await asyncio.wait((serving, watching), return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        watching.cancel()
    finally:
        opening.cancel()


def _raise(task: asyncio.Task[None]) -> None:
    """Raise the error with which opening the model failed, if any."""
    error = task.exception()
    if isinstance(error, NpurtError):
        raise error
    task.result()
