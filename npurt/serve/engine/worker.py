"""The process of an engine: it does what the front says until the front goes away."""

import contextlib
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from npurt.errors import NpurtError
from npurt.serve.engine.protocol import (
    HEADER,
    VERSION,
    AskStats,
    Cancel,
    Event,
    Failed,
    Message,
    Open,
    Ready,
    Stats,
    Step,
    Submit,
    frame,
    length,
    parse,
)

LEAVE_SECONDS = 10.0  # what a step may take after the front went away


class Backend(Protocol):
    """What computes tokens.  One thread calls all methods."""

    n_ctx: int
    sequences: int
    device: str

    def submit(self, submit: Submit) -> None:
        """Take a sequence, which runs when there is room for it.  NpurtError refuses it."""

    def cancel(self, sequence: int) -> None:
        """Forget a sequence, if it is known."""

    def step(self) -> Sequence[Event]:
        """Do the next piece of work; return what it gave.  NpurtError ends all sequences."""

    @property
    def busy(self) -> bool:
        """Whether there is a sequence."""

    def stats(self) -> Mapping[str, float]:
        """Return counts by name."""

    def close(self) -> None:
        """Release everything."""


def work(
    connection: socket.socket, open_backend: Callable[[str, Mapping[str, Any]], Backend]
) -> None:
    """Open the model that the front names, and serve its sequences until the front goes away.

    SIGTERM and SIGINT are the front's to answer: it finishes its streams first.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with connection, contextlib.suppress(BrokenPipeError, ConnectionError):
        asked = receive(connection)
        if not isinstance(asked, Open):
            return
        try:
            if asked.version != VERSION:
                raise NpurtError(
                    f"the front speaks version {asked.version}, the engine {VERSION}",
                    remedy="run the same npurt on both sides",
                )
            backend = open_backend(asked.path, asked.options)
        except NpurtError as error:
            connection.sendall(frame(Failed(error.what, error.remedy)))
            return
        except MemoryError as error:
            connection.sendall(frame(Failed(f"no memory left: {error}", "ask for a smaller -c")))
            return
        with contextlib.closing(backend):
            ready = Ready(VERSION, backend.n_ctx, backend.sequences, backend.device)
            connection.sendall(frame(ready))
            Worker(connection, backend).run()


class Worker:
    """Steps of a backend, and commands of the front between them."""

    def __init__(self, connection: socket.socket, backend: Backend) -> None:
        self._connection = connection
        self._backend = backend
        self._commands: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._open: set[int] = set()
        self._refused: list[Event] = []

    def run(self) -> None:
        """Work until the front goes away."""
        threading.Thread(target=self._listen, daemon=True).start()
        while self._obey():
            events = [*self._refused, *self._step()]
            self._refused.clear()
            self._open.difference_update(event.id for event in events if event.finish)
            if events:
                self._connection.sendall(frame(Step(events)))

    def _listen(self) -> None:
        """Put commands into the queue; a front that went away is None, and gets no long step."""
        with contextlib.suppress(OSError, NpurtError):
            while (message := receive(self._connection)) is not None:
                self._commands.put(message)
        self._commands.put(None)
        late = threading.Timer(LEAVE_SECONDS, os._exit, (1,))
        late.daemon = True
        late.start()

    def _obey(self) -> bool:
        """Do all commands; wait for one if there is nothing else to do.  False: leave."""
        while True:
            try:
                idle = not (self._backend.busy or self._refused)
                command = self._commands.get(block=idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            self._do(command)

    def _do(self, command: Message) -> None:
        match command:
            case Submit():
                try:
                    self._backend.submit(command)
                    self._open.add(command.id)
                except NpurtError as error:
                    self._refused.append(failure(command.id, error))
            case Cancel():
                self._backend.cancel(command.id)
                self._open.discard(command.id)
            case AskStats():
                self._connection.sendall(frame(Stats(dict(self._backend.stats()))))

    def _step(self) -> Sequence[Event]:
        if not self._backend.busy:
            return ()
        try:
            return self._backend.step()
        except NpurtError as error:  # of the whole step
            for sequence in self._open:
                self._backend.cancel(sequence)
            return [failure(sequence, error) for sequence in self._open]


def failure(sequence: int, error: NpurtError) -> Event:
    """Return the event of a sequence that ends with *error*.

    Errors that are values, such as `SettingError`, are of what was asked for.
    """
    finish = "refused" if isinstance(error, ValueError) else "error"
    return Event(sequence, finish=finish, error=(error.what, error.remedy))


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
