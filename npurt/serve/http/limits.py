"""What a request may have at most, and how its body is read."""

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from starlette.types import Receive, Scope

from npurt.serve.http.errors import HttpError, wrong

BODY = 4 << 20  # bytes
LARGE = 32 << 10  # bytes of a body from which its texts are tokenized in a thread
BODY_SECONDS = 30.0  # in which a body has to arrive
HEAD = 64 << 10  # bytes of request line and headers
HEAD_SECONDS = 30.0  # in which they have to arrive
SEND_SECONDS = 60.0  # that a client may take nothing of an answer
MESSAGES = 1000
CHOICES = 8  # texts of one request
STOPS = 16
STOP_TEXT = 1000  # characters of one
BIASES = 1024  # of tokens
TOOLS = 128
TOOL_NAME = 256  # characters
DETOKENIZED = 1 << 20  # tokens
SCHEMA = 64 << 10  # characters
TOP_LOGPROBS = 20
QUEUE = 4  # times the sequences that run at a time
EMBEDDINGS = 256  # texts that wait to be embedded; one request may have more
DEPTH = 200  # of nested lists and objects


class Gone(Exception):
    """The client went away."""


async def body(scope: Scope, receive: Receive) -> dict[str, Any]:
    """Return the JSON object that is the body of a request.

    Raises:
        Gone: The client went away before the end.
        HttpError: It is something else, too large or too slow.
    """
    headers = dict(scope["headers"])
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding.lower() != b"identity":
        raise HttpError(415, "the body is compressed", remedy="send it as it is")
    if int(headers.get(b"content-length", 0)) > BODY:
        raise _too_large()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return parsed(await _whole(receive))
    except TimeoutError:
        raise HttpError(
            408, f"the body did not arrive in {BODY_SECONDS:.0f} s", remedy="send it again"
        ) from None


async def _whole(receive: Receive) -> bytes:
    data = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        data += message.get("body", b"")
        if len(data) > BODY:
            raise _too_large()
        if not message.get("more_body"):
            return bytes(data)


def _too_large() -> HttpError:
    return HttpError(413, f"the body has more than {BODY} bytes", remedy="send less at once")


def parsed(data: bytes) -> dict[str, Any]:
    """Return the object that *data* is, in JSON.

    Raises:
        HttpError: It is something else.
    """
    try:
        value = json.loads(data.decode(), parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise wrong(f"the body is no JSON: {error!s:.100}", "send a JSON object in UTF-8") from None
    if not isinstance(value, Mapping):
        raise wrong("the body is no JSON object", "send an object such as {...}")
    if too_deep(value):
        raise wrong(f"the body is nested more than {DEPTH} deep", "send something flatter")
    return dict(value)


def too_deep(value: Any) -> bool:
    """Return whether lists and objects in *value* are nested more than `DEPTH` deep."""
    level = [value]
    for _ in range(DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):  # an answer that repeats it would be no JSON
        raise ValueError(f"{text:.100} is too large")
    return value
