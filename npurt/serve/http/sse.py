"""Encode streams: server-sent events, and Ollama's lines of JSON."""

import json
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Protocol

HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # makes nginx forward each event without buffering
}
EVENTS = "text/event-stream; charset=utf-8"
LINES = "application/x-ndjson"
DONE = b"data: [DONE]\n\n"
PART = 64  # elements of a list that `whole` encodes at once; an embedding has thousands of numbers
# json.dumps would make a new encoder for each call.
ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def compact(value: Any) -> bytes:
    """Return *value* as JSON in ASCII, which can encode lone surrogates as well."""
    return ENCODE(value).encode()


def whole(value: dict[str, Any] | list[Any]) -> bytes:
    """Return *value* as JSON, as `compact`, but let other threads run: encode lists in parts."""
    return b"".join(_parts(value))


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict) and any(map(_is_long, value.values())):
        for i, (name, each) in enumerate(value.items()):
            yield (b"," if i else b"{") + compact(name) + b":"
            yield from _parts(each)
        yield b"}"
    elif _is_long(value):
        for i in range(0, len(value), PART):
            yield (b"," if i else b"[") + compact(value[i : i + PART])[1:-1]
        yield b"]"
    else:
        yield compact(value)


def _is_long(value: Any) -> bool:
    return isinstance(value, list) and len(value) > PART


def data(value: Any) -> bytes:
    """Return *value* as an event without a name."""
    return b"data: " + compact(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    """Return *value* as an event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + compact(value) + b"\n\n"


def line(value: Any) -> bytes:
    """Return *value* as one line of JSON."""
    return compact(value) + b"\n"


class Source(Protocol):
    """The generation of a stream."""

    async def begun(self) -> None:
        """Wait until the request is accepted; raise the error if it is refused."""

    def cancel(self) -> None:
        """End the generation."""


class Stream:
    """A response that is sent in parts while it is generated.

    Args:
        parts: Yields the encoded parts.
        source: What generates the parts.  Its ``begun`` is awaited before anything is sent, so a
            refused request has the status of its error.  Its ``cancel`` is always called at the
            end, also after an error.
        kind: The content type.
        packed: Encodes the body of an error as the last part of the stream.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        source: Source,
        *,
        kind: str = EVENTS,
        packed: Callable[[Any], bytes] = data,
    ) -> None:
        self.parts = parts
        self.source = source
        self.kind = kind
        self.packed = packed
