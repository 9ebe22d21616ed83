"""Read messages from a socket: `receive` blocks (the engine), `read` is async (the front)."""

import asyncio
import socket

from npurt.errors import NpurtError
from npurt.serve.engine.protocol import HEADER, Message, length, parse


class EngineLost(NpurtError):
    """The engine's process ended, or does not answer."""


def receive(connection: socket.socket) -> Message | None:
    """Return the next message, or None if the other side closed the connection.

    Raises:
        ProtocolError: The data is not a valid message.
    """
    header = _exactly(connection, HEADER)
    data = None if header is None else _exactly(connection, length(header))
    return None if data is None else parse(data)


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(min(count - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


async def read(reader: asyncio.StreamReader) -> Message:
    """Return the next message of an engine.

    Raises:
        EngineLost: The connection ended.
        ProtocolError: The data is not a valid message.
    """
    try:
        header = await reader.readexactly(HEADER)
        return parse(await reader.readexactly(length(header)))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EngineLost(
            "the process of the engine ended", remedy="its last words are on standard error"
        ) from error
