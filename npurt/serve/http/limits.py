"""Limit the size of requests, and read their bodies."""

import asyncio
import itertools
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from starlette.types import Receive, Scope

from npurt.serve.http.errors import HttpError, wrong

BODY = 4 << 20  # bytes
LARGE = 32 << 10  # bytes of a body or an answer; from this size on, threads work on it
VALUES = 1 << 18  # numbers, strings, lists and objects in one body
CONTAINERS = 1 << 16  # lists and objects in one body; also members of its objects
BODY_SECONDS = 30.0  # timeout for receiving a body
HEAD = 64 << 10  # bytes of request line and headers
HEAD_SECONDS = 30.0  # timeout for receiving request line and headers
SEND_SECONDS = 60.0  # timeout for a client that receives nothing of a response
MESSAGES = 1000  # messages in one request
CHOICES = 8  # completions of one request
STOPS = 16  # stop strings
STOP_TEXT = 1000  # characters of one stop string
BIASES = 1024  # tokens or texts in logit_bias
ADAPTERS = 64  # LoRA adapters in one request
BIASED_TEXT = 1000  # characters of a text in logit_bias
METADATA = 16  # entries of metadata, as in OpenAI's interface
TOOLS = 128  # tools in one request
TOOL_NAME = 256  # characters
SCHEMA = 64 << 10  # characters of one schema or grammar
TOP_LOGPROBS = 20  # tokens per position
QUEUE = 4  # waiting sequences per sequence that the engine runs at the same time
TEXTS = 2048  # texts to embed, or documents to rank, in one request
EMBEDDINGS = 256  # inputs in the queue for embeddings; an idle server accepts a larger request
DEPTH = 200  # nesting of lists and objects
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)  # a string of JSON


class Gone(Exception):
    """The client disconnected."""


LIST = "list"  # the field with a body that is a list


async def body(scope: Scope, receive: Receive) -> bytes:
    """Return the body of a request.

    Raises:
        Gone: The client disconnected before the end of the body.
        HttpError: The body is too large, too slow or compressed.
    """
    headers = dict(scope["headers"])
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding.lower() != b"identity":
        raise HttpError(415, "the body is compressed", remedy="send it as it is")
    if int(headers.get(b"content-length", 0)) > BODY:
        raise _too_large()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _whole(receive)
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


def parsed(data: bytes, *, listed: bool = False) -> dict[str, Any]:
    """Return the JSON object in *data*, or with *listed*, the list in the field `LIST`.

    Raises:
        HttpError: *data* is not a JSON object, has too many values, or its nesting is too deep.
    """
    _require_few_values(data)
    try:
        value = json.loads(data.decode(), parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise wrong(f"the body is no JSON: {error!s:.100}", "send a JSON object in UTF-8") from None
    if listed:
        value = {LIST: value}
    if not isinstance(value, Mapping):
        raise wrong("the body is no JSON object", "send an object such as {...}")
    if too_deep(value):
        raise wrong(f"the body is nested more than {DEPTH} deep", "nest lists and objects less")
    return dict(value)


def _require_few_values(data: bytes) -> None:
    """Check the number of values before `json.loads`, which no other thread can interrupt.

    Raises:
        HttpError: *data* has more than `VALUES` values, or more than `CONTAINERS` lists and
            objects, or members of objects.
    """
    opened, members = data.count(b"[") + data.count(b"{"), data.count(b":")
    if max(opened, members) <= CONTAINERS and opened + data.count(b",") <= VALUES:
        return
    opened = members = commas = end = 0  # now without those in strings
    ends = ((text.start(), text.end()) for text in STRING.finditer(data))
    for begin, after in itertools.chain(ends, [(len(data), len(data))]):  # other threads may run
        opened += data.count(b"[", end, begin) + data.count(b"{", end, begin)
        members += data.count(b":", end, begin)
        commas += data.count(b",", end, begin)
        end = after
        if max(opened, members) > CONTAINERS or opened + commas > VALUES:
            raise HttpError(
                413, f"the body has more than {VALUES} values, {CONTAINERS} lists and objects, or "
                f"{CONTAINERS} members of objects", remedy="send less at once",
            )  # fmt: skip


def exceeds(value: Any, maximum: int) -> bool:
    """Return whether *value* as JSON has more than *maximum* characters.

    The whole of *value* is not read.  Escapes in strings are not counted.
    """
    size, left = 0, [value]
    while left and size <= maximum:
        each = left.pop()
        size += 1
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, dict):
            size += len(each)
            left += [*itertools.islice(each, maximum), *itertools.islice(each.values(), maximum)]
        elif isinstance(each, list | tuple):
            size += len(each)
            left += each[:maximum]
    return size > maximum


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
    if math.isinf(value):  # a response that repeats the number would not be valid JSON
        raise ValueError(f"{text:.100} is too large")
    return value
