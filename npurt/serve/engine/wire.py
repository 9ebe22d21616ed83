"""Messages from a socket, for the blocking side and for the side with an event loop."""

import asyncio
import socket

from npurt.errors import NpurtError
from npurt.serve.engine.protocol import HEADER, Message, length, parse


class EngineLost(NpurtError):
    """The process of the engine ended, or is stuck."""


def receive(connection: socket.socket) -> Message | None:
    """Return the next message; None: the other side went away.

    Raises:
        ProtocolError: It is no message.
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
        ProtocolError: It is no message.
    """
    try:
        header = await reader.readexactly(HEADER)
        return parse(await reader.readexactly(length(header)))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EngineLost(
            "the process of the engine ended", remedy="its last words are on standard error"
        ) from error
