"""Run the server: listen, open the model, serve until a signal, finish the active requests.

May import every package of `npurt.serve`.
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
from npurt.runtime.open import registry
from npurt.serve.app import application
from npurt.serve.engine.client import EngineClient
from npurt.serve.engine.protocol import MODEL, VERSION, Open
from npurt.serve.front.front import DRAIN_SECONDS, Front, ServerSettings
from npurt.serve.front.offer import ModelPool, Only
from npurt.serve.front.served_model import ServedModel
from npurt.serve.http import limits
from npurt.serve.http.address import BACKLOG, Address
from npurt.serve.http.connections import ACCEPTED, Connections, limit_repeats, most_connections
from npurt.serve.status.metrics import summary
from npurt.settings import HOSTS

if TYPE_CHECKING:
    from npurt.serve.router.folder import FolderModel
    from npurt.serve.router.policy import Policy

PROBE_SECONDS = 1.0  # time between two probes of a connection that the client has half-closed
IDLE_SECONDS = 30  # limit on the idle time of a connection between two requests
ENGINE = (sys.executable, "-m", "npurt.serve.engine")

log = logging.getLogger("npurt.serve")


class Timer:
    """A timer that calls *call* a given time after `start`, unless `stop` is called first."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """Start the timer for *seconds*; do nothing if it is running."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(seconds, self._call)

    def stop(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class ChunkedConnection(h11.Connection):
    """An h11 connection that encodes chunks of a stream faster than h11, and checks headers.

    `_require_sound` lists the headers that h11 accepts and this class refuses.

    Args:
        gone: Returns whether the client has disconnected; no chunk is written then.
    """

    def __init__(self, gone: Callable[[], bool]) -> None:
        super().__init__(h11.SERVER, limits.HEAD)
        self._gone = gone
        self._chunked = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event that the client sent."""
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
    """Refuse headers that are too large, and a body with both Content-Length and chunks.

    h11 does not limit headers that arrive in one read.  If both lengths are given, a proxy may use
    the other one and treat a part of the body as a request (RFC 9112, 6.1).

    Raises:
        h11.RemoteProtocolError: The headers are refused: status 400, and the connection is closed.
    """
    lines = (len(name) + len(value) + 4 for name, value in request.headers)
    if len(request.target) + sum(lines) > limits.HEAD:
        raise h11.RemoteProtocolError(f"the headers have more than {limits.HEAD} bytes")
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:
        raise h11.RemoteProtocolError("the body has a length and is chunked as well")


class Protocol(H11Protocol):
    """The HTTP protocol of a connection, with timeouts for receiving headers and for sending.

    A client may close its side after a request (half-close), and gets the answer.  A client that
    closes the connection looks the same until the server sends something.  So until the response
    begins, the server sends an interim response (102, RFC 9110, 15.2) each `PROBE_SECONDS`: it is
    ignored by the former, and ends the connection of the latter.
    """

    server_state: Connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first request's headers."""
        super().connection_made(transport)
        self.conn = ChunkedConnection(transport.is_closing)
        self._half_closed = False
        self._probing = Timer(self._probe)
        if not self.server_state.admit(self):
            transport.abort()
        self._late = Timer(transport.abort)  # runs while headers are incomplete
        self._stalled = Timer(transport.abort)  # runs while the send buffer is full
        self._late.start(limits.HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Parse *data*; run the headers' timeout while the headers of a request are incomplete."""
        super().data_received(data)
        if self._answering:
            self.server_state.busy(self)
        if self.conn.their_state is not h11.IDLE:
            self._late.stop()
        elif self.conn.trailing_data[0]:
            self._late.start(limits.HEAD_SECONDS)

    def pause_writing(self) -> None:
        """Start the send timeout: the send buffer is full."""
        super().pause_writing()
        self._stalled.start(limits.SEND_SECONDS)

    def resume_writing(self) -> None:
        """Stop the send timeout: the client received data."""
        self._stalled.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._late.stop()
        self._stalled.stop()
        self._probing.stop()
        self.server_state.lost(self)
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection."""
        self.transport.close()

    @property
    def _answering(self) -> bool:
        """Whether a whole request was received and is being answered."""
        cycle = self.cycle
        return cycle is not None and not (cycle.more_body or cycle.response_complete)

    def on_response_complete(self) -> None:
        """Begin the next request; close the connection if the client has closed its side."""
        self.server_state.idle(self)
        super().on_response_complete()
        if self._answering:  # a pipelined request
            self.server_state.busy(self)
        elif self._half_closed:
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether to keep the connection open, until the client has its answer."""
        self._half_closed = self._answering
        if self._half_closed:
            self._probe()
        return self._half_closed

    def _probe(self) -> None:
        """Send an interim response if the response has not begun."""
        if self.transport.is_closing() or not self._answering or self.cycle.response_started:
            return
        self._probing.stop()
        if self.scope["http_version"] == "1.1":  # interim responses are unknown to HTTP/1.0
            interim = h11.InformationalResponse(status_code=102, headers=[])
            self.transport.write(self.conn.send(interim) or b"")
            self._probing.start(PROBE_SECONDS)


class Server(uvicorn.Server):
    """A server that finishes its requests at a first signal, and exits at once at a second one.

    Attributes:
        status: The exit status: 128 plus the number of the signal; 0 before a signal.
    """

    def __init__(self, app: ASGIApp, offers: ModelPool, connections: Connections) -> None:
        super().__init__(uvicorn.Config(
            app, http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=5,
            backlog=ACCEPTED,
        ))  # fmt: skip
        self.status = 0
        self.server_state = connections
        self._offers = offers
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections; clients wait in the kernel's queue, not only `ACCEPTED` of them."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to drain the server; at a second signal, exit at once."""
        if self.status:
            self.should_exit = self.force_exit = True
        self.status = 128 + sig
        self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._finish())

    async def _finish(self) -> None:
        log.warning("no new requests; active requests get %.0f s", DRAIN_SECONDS)
        await self._offers.drain()
        log.warning("%s", await summary(self._offers))
        self.should_exit = True


@dataclass(frozen=True, slots=True)
class Start:
    """The arguments of the server.

    Attributes:
        model: The front's view of the only model, or the models of a folder, which are loaded on
            demand.
        policy: The limits on loaded models of a folder; unused with one model.
        options: Arguments of `npurt.Llama`.
        stuck: Seconds without a message after which an engine is replaced.
        command: The command line that starts an engine.
        page: Serve the chat page at `/`.
    """

    model: "ServedModel | Sequence[FolderModel]"
    address: Address = field(default_factory=Address)
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: ServerSettings = field(default_factory=ServerSettings)
    stuck: float = 120.0
    command: Sequence[str] = ENGINE
    page: bool = True
    policy: "Policy | None" = None


def run(start: Start) -> int:
    """Serve until a signal; return the process's exit status.

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
    connections = Connections(most_connections(1 if isinstance(start.model, ServedModel)
                                               else len(start.model)))  # fmt: skip
    limit_repeats()
    offers: ModelPool
    if isinstance(start.model, ServedModel):
        opening = Open(VERSION, str(start.model.path), start.options)
        identity = {MODEL: start.model.identity}
        engine = EngineClient(start.command, opening, stuck=start.stuck, identity=identity)
        offers = Only(Front(start.model, engine, start.settings))
        named = start.model.name
    else:
        from npurt.serve.router.router import Launch, Router  # 10 MB, unused with one model

        launch = Launch(start.command, start.options, start.stuck)
        offers = Router(start.model, launch, start.settings, start.policy)
        named = f"{len(start.model)} models"
    app = application(
        offers, keys=address.keys, hosts=address.hosts, origins=address.origins, page=start.page
    )
    server = Server(app, offers, connections)
    host, port = listening.getsockname()[:2]
    at = f"{named} at http://{f'[{host}]' if ':' in host else host}:{port}"
    serving = asyncio.create_task(server.serve([listening]))
    try:
        if engine is None:
            log.warning("%s", at)
        else:
            log.warning("loading %s, to serve it on port %d", named, port)
            await _run_engine(engine, serving, at)
        await serving
    finally:
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        await offers.close()
    return server.status


async def _run_engine(engine: EngineClient, serving: asyncio.Task[None], at: str) -> None:
    """Open the only model, log its address *at*, and watch its engine while the server runs."""
    opening = asyncio.create_task(engine.start())
    try:
        await asyncio.wait((serving, opening), return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            return
        _raise(opening)
        if engine.ready is not None:
            ready = engine.ready
            names = [f"-dev {each.name}" for each in registry.own_backends() if each.is_npu]
            hint = f"; {registry.listed(names)} uses an NPU" if ready.device in HOSTS else ""
            log.warning("%s", at)  # not before: the engine may refuse a setting
            log.warning("ready: %s, context of %d%s", ready.device, ready.n_ctx, hint)
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
