"""The endpoint of a path: read a request, call its handler, cancel it if the client disconnects."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope, Send

from npurt.errors import NpurtError
from npurt.serve.http import limits, schema, sse
from npurt.serve.http.errors import HttpError, internal_error, of, shaped, wrong
from npurt.serve.http.fields import Fields
from npurt.serve.http.limits import Gone
from npurt.serve.http.log import RequestLine

T = TypeVar("T")
F = TypeVar("F")
QUERY_FIELDS = 16
Answer = dict[str, Any] | list[Any] | bytes | sse.Stream

log = logging.getLogger("npurt.serve")


class WorkThreads:
    """Threads for the CPU work of large requests, and of small ones while a large one is active.

    The work of a small request may wait for a lock of an object that a large one uses, such as the
    tokenizer.  In a thread, this wait does not block the event loop.
    """

    def __init__(self) -> None:
        self._large = ThreadPoolExecutor(2, "npurt large")  # at most two large requests at a time
        self._small = ThreadPoolExecutor(1, "npurt small")
        self._under_way: list[Future[Any]] = []  # work of large requests, also of cancelled ones

    async def do(self, work: Callable[[], T], *, large: bool) -> T:
        """Return the result of *work*, called in a thread if *large* or if large work is active."""
        self._under_way = [each for each in self._under_way if not each.done()]
        if not large and not self._under_way:
            return work()
        try:
            future = (self._large if large else self._small).submit(work)
        except RuntimeError as error:
            raise HttpError(
                503, f"the system refuses a thread: {error}",
                remedy="raise the server's limit of processes (ulimit -u)", code="no_threads",
                headers={"Retry-After": "5"},
            ) from error  # fmt: skip
        if large:
            self._under_way.append(future)
        return await asyncio.wrap_future(future)


THREADS = WorkThreads()


class HttpRequest:
    """An HTTP request.

    Attributes:
        fields: The fields of the body; for GET, of the query.
        path: The path of the URL.
        salt: The salt of the prefix cache, which differs for each API key.
        parameters: The variable parts of the path by name.
    """

    def __init__(self, scope: Scope, values: dict[str, Any], *, large: bool = False) -> None:
        self.fields = Fields(values)
        self.path: str = scope["path"]
        self.salt: str = scope.get("state", {}).get("salt", "")
        self.parameters: dict[str, Any] = scope.get("path_params", {})
        self._large = large

    async def in_thread(self, work: Callable[[], T], *, large: bool = False) -> T:
        """Return the result of *work*, called in a thread if the request or the work is large.

        So a long *work* does not delay the streams of other requests.
        """
        return await THREADS.do(work, large=large or self._large)


Handler = Callable[[F, HttpRequest], Awaitable[Answer]]  # F: the type of the endpoint's *front*


class Endpoint(Generic[F]):
    """The ASGI application of one path.

    Args:
        front: The handler's first argument, a `Front` or `ModelPool`.
        handler: Returns an object or a list that is sent as JSON, bytes of plain text, or a stream.
        body: The schema of the request's body; None: requests have no body.
    """

    def __init__(self, front: F, handler: Handler[F], body: schema.Schema | None = None) -> None:
        self._front = front
        self._handler = handler
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        line = RequestLine(scope)
        line.begin()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                line.status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, sending)
        except Gone:
            return
        except HttpError as error:
            await reply(sending, shaped(error, scope["path"]), error.status, error.headers)
        except NpurtError as error:
            known = of(error)
            await reply(sending, shaped(known, scope["path"]), known.status)
        except Exception as error:
            if line.status:
                raise
            found = internal_error(error)
            await reply(sending, shaped(found, scope["path"]), found.status)
        finally:
            line.end()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        large = False
        if self._body is None:
            values = _query(scope)
        else:
            data = await limits.body(scope, receive)
            large = len(data) >= limits.LARGE
            values = await THREADS.do(partial(_read, data, self._body), large=large)
            del data
        request = HttpRequest(scope, values, large=large)
        answer = await until_gone(self._handle(request), receive)
        if isinstance(answer, sse.Stream):
            try:
                await until_gone(answer.source.begun(), receive)
                await until_gone(self._stream(scope, answer, send), receive)
            finally:
                answer.source.cancel()  # also if the stream was not started
        else:
            await reply(send, answer, head=scope["method"] == "HEAD")

    async def _handle(self, request: HttpRequest) -> Answer:
        return await self._handler(self._front, request)

    async def _stream(self, scope: Scope, stream: sse.Stream, send: Send) -> None:
        """Send the parts of *stream*; if one fails, send the error as the last part."""
        await send(_start(200, stream.kind, sse.HEADERS))
        try:
            async with contextlib.aclosing(stream.parts) as parts:
                async for part in parts:
                    await send(_part(part))
        except Exception as error:  # noqa: BLE001  the last event tells the client the error
            known = of(error, 500) if isinstance(error, NpurtError) else internal_error(error)
            await send(_part(stream.packed(shaped(known, scope["path"]))))
        await send({"type": "http.response.body", "body": b""})


def _read(data: bytes, body: schema.Schema) -> dict[str, Any]:
    """Return the object in *data*, or the field `limits.LIST` with a list; it matches *body*.

    Raises:
        HttpError: *data* is no such object.
    """
    listed = body["type"] == "array"
    values = limits.parsed(data, listed=listed)
    schema.check(values[limits.LIST] if listed else values, body, "body" * listed)
    return values


async def until_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return the result of *work*; cancel *work* if the client disconnects first.

    Raises:
        Gone: The client disconnected.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Gone
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


def _query(scope: Scope) -> dict[str, Any]:
    """Return the fields of the query as strings; the last of several fields with one name wins.

    Raises:
        HttpError: The query has too many fields.
    """
    query: bytes = scope.get("query_string", b"")
    try:
        return dict(parse_qsl(query.decode("latin-1"), max_num_fields=QUERY_FIELDS))
    except ValueError:
        raise wrong(f"the query has more than {QUERY_FIELDS} fields", "send fewer") from None


async def _disconnect(receive: Receive) -> None:
    """Return when the client has disconnected; drop other data that it sends."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _part(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def reply(
    send: Send,
    answer: dict[str, Any] | list[Any] | bytes,
    status: int = 200,
    headers: dict[str, str] | None = None,
    *,
    head: bool = False,
) -> None:
    """Send a whole response: JSON, or bytes as plain text; with *head*, headers only."""
    text = isinstance(answer, bytes)
    if isinstance(answer, bytes):
        data = answer
    else:
        large = limits.exceeds(answer, limits.LARGE)
        data = await THREADS.do(partial(sse.whole, answer), large=large)
    kind = "text/plain; version=0.0.4; charset=utf-8" if text else "application/json"
    await send(_start(status, kind, {"Content-Length": str(len(data)), **(headers or {})}))
    await send({"type": "http.response.body", "body": b"" if head else data})


def _start(status: int, kind: str, headers: dict[str, str]) -> dict[str, Any]:
    pairs = {"Content-Type": kind, "X-Content-Type-Options": "nosniff", **headers}
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(name.lower().encode(), value.encode()) for name, value in pairs.items()],
    }
