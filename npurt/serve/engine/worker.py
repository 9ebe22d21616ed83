"""Run an engine's process: handle the front's messages until the front disconnects."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from npurt.errors import NpurtError
from npurt.serve.engine import protocol
from npurt.serve.engine.wire import receive

LEAVE_SECONDS = 10.0  # timeout for the backend to close after the front disconnected


Emit = Callable[[Sequence[protocol.SequenceEvent]], None]


class EngineBackend(Protocol):
    """A model that computes sequences in its own thread and reports each step through `Emit`."""

    n_ctx: int
    sequences: int
    device: str
    identity: Mapping[str, str]  # see `protocol.Ready`

    def submit(self, submit: protocol.Submit) -> None:
        """Queue a sequence; it is admitted when there is space for it.

        Raises:
            NpurtError: The sequence can never run.
        """

    def cancel(self, sequence: int) -> None:
        """End a sequence before the next step; do nothing if it has ended."""

    def stats(self) -> Mapping[str, float]:
        """Return counts by name.

        Raises:
            NpurtError: The backend is broken.
        """

    def close(self) -> None:
        """End the thread, and release the model."""


Opener = Callable[[str, Mapping[str, Any], Emit], EngineBackend]


def work(connection: socket.socket, open_backend: Opener) -> None:
    """Open the model that the front names, and run its sequences until the front disconnects.

    The process ignores SIGTERM, SIGINT and SIGHUP: the front handles them, finishes its streams,
    and then closes the connection.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with connection, contextlib.suppress(BrokenPipeError, ConnectionError):
        asked = receive(connection)
        if not isinstance(asked, protocol.Open):
            return
        sending = threading.Lock()  # the main thread and the backend's thread send messages

        def send(message: protocol.Message) -> None:
            with sending:
                connection.sendall(protocol.frame(message))

        try:
            if asked.version != protocol.VERSION:
                raise NpurtError(
                    f"the front speaks version {asked.version}, the engine {protocol.VERSION}",
                    remedy="run the same npurt on both sides",
                )
            backend = open_backend(
                asked.path, asked.options, lambda events: send(protocol.StepEvents(events))
            )
        except NpurtError as error:
            send(protocol.Failed(error.what, error.remedy))
            return
        except MemoryError as error:
            send(protocol.Failed(f"no memory left: {error}", "ask for a smaller -c"))
            return
        send(protocol.Ready(
            protocol.VERSION, backend.n_ctx, backend.sequences, backend.device, backend.identity
        ))  # fmt: skip
        while (command := receive(connection)) is not None:
            _obey(command, backend, send)
        late = threading.Timer(LEAVE_SECONDS, os._exit, (1,))
        late.daemon = True
        late.start()
        backend.close()


def _obey(
    command: protocol.Message, backend: EngineBackend, send: Callable[[protocol.Message], None]
) -> None:
    match command:
        case protocol.Submit():
            try:
                backend.submit(command)
            except Exception as error:  # noqa: BLE001  other sequences continue
                send(protocol.StepEvents([failure(command.id, error)]))
        case protocol.Cancel():
            backend.cancel(command.id)
        case protocol.AskStats():
            send(protocol.EngineStats(dict(backend.stats())))


def failure(sequence: int, error: BaseException) -> protocol.SequenceEvent:
    """Return the event of a sequence that ends with *error*.

    An error that is a ValueError, such as `SettingError`, is an error in the request ("refused").
    """
    if not isinstance(error, NpurtError):
        return protocol.SequenceEvent(
            sequence, finish="error", error=(repr(error), "report this as a bug")
        )
    finish = "refused" if isinstance(error, ValueError) else "error"
    return protocol.SequenceEvent(sequence, finish=finish, error=(error.what, error.remedy))
