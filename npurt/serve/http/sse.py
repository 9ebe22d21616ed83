"""Server-sent events, and lines of JSON, which Ollama's interface streams."""

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx passes on each event at once
}
EVENTS = "text/event-stream; charset=utf-8"
LINES = "application/x-ndjson"
DONE = b"data: [DONE]\n\n"
ENCODE = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps makes one for each call


def compact(value: Any) -> bytes:
    """Return *value* as JSON in ASCII, which can hold lone surrogates as well."""
    return ENCODE(value).encode()


def data(value: Any) -> bytes:
    """Return *value* as an event without a name."""
    return b"data: " + compact(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    """Return *value* as an event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + compact(value) + b"\n\n"


def line(value: Any) -> bytes:
    """Return *value* as a line."""
    return compact(value) + b"\n"


class Stream:
    """An answer that is sent while it is made.

    Args:
        parts: What is sent.
        cancel: Ends what makes them; called at the end in any case.
        kind: The content type.
        packed: Turns the body of an error into the last part of the stream.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        cancel: Callable[[], None],
        *,
        kind: str = EVENTS,
        packed: Callable[[Any], bytes] = data,
    ) -> None:
        self.parts = parts
        self.cancel = cancel
        self.kind = kind
        self.packed = packed
