"""The process of an engine: it does what the front says until the front goes away."""

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

LEAVE_SECONDS = 10.0  # what a step may take after the front went away


Emit = Callable[[Sequence[protocol.Event]], None]


class Backend(Protocol):
    """Computes tokens in a thread of its own, which reports each step through `Emit`."""

    n_ctx: int
    sequences: int
    device: str

    def submit(self, submit: protocol.Submit) -> None:
        """Take a sequence, which runs when there is room for it.  NpurtError refuses it."""

    def cancel(self, sequence: int) -> None:
        """End a sequence before the next step, if it is known."""

    def stats(self) -> Mapping[str, float]:
        """Return counts by name.  NpurtError: the backend is broken."""

    def close(self) -> None:
        """Release everything."""


Opener = Callable[[str, Mapping[str, Any], Emit], Backend]


def work(connection: socket.socket, open_backend: Opener) -> None:
    """Open the model that the front names, and serve its sequences until the front goes away.

    SIGTERM and SIGINT are the front's to answer: it finishes its streams first.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with connection, contextlib.suppress(BrokenPipeError, ConnectionError):
        asked = receive(connection)
        if not isinstance(asked, protocol.Open):
            return
        sending = threading.Lock()  # answers come from two threads

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
                asked.path, asked.options, lambda events: send(protocol.Step(events))
            )
        except NpurtError as error:
            send(protocol.Failed(error.what, error.remedy))
            return
        except MemoryError as error:
            send(protocol.Failed(f"no memory left: {error}", "ask for a smaller -c"))
            return
        send(protocol.Ready(protocol.VERSION, backend.n_ctx, backend.sequences, backend.device))
        while (command := receive(connection)) is not None:
            _obey(command, backend, send)
        late = threading.Timer(LEAVE_SECONDS, os._exit, (1,))
        late.daemon = True
        late.start()
        backend.close()


def _obey(
    command: protocol.Message, backend: Backend, send: Callable[[protocol.Message], None]
) -> None:
    match command:
        case protocol.Submit():
            try:
                backend.submit(command)
            except Exception as error:  # noqa: BLE001  others go on
                send(protocol.Step([failure(command.id, error)]))
        case protocol.Cancel():
            backend.cancel(command.id)
        case protocol.AskStats():
            send(protocol.Stats(dict(backend.stats())))


def failure(sequence: int, error: BaseException) -> protocol.Event:
    """Return the event of a sequence that ends with *error*.

    Errors such as `SettingError`, which are ValueErrors, are the request's fault.
    """
    if not isinstance(error, NpurtError):
        return protocol.Event(sequence, finish="error", error=(repr(error), "report this as a bug"))
    finish = "refused" if isinstance(error, ValueError) else "error"
    return protocol.Event(sequence, finish=finish, error=(error.what, error.remedy))
