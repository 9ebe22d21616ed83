"""The front's side of an engine: start its process, restart it, and resubmit its sequences.

If the process dies or sends no message for too long, it is started again, and every open sequence
is resubmitted with its prompt and generated tokens.  If the new process opened other files, such as
another model under the same name, the engine ends instead: the text would mix two models.

Sequences that may have killed the process (suspects) are resubmitted one at a time, each after the
previous one got a token.  So a sequence that kills the engine again ends no other sequence.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from npurt.base.gguf_parts import part_names
from npurt.errors import NpurtError
from npurt.serve.engine.protocol import (
    VERSION,
    AskStats,
    Cancel,
    EngineStats,
    Failed,
    Message,
    Open,
    ProtocolError,
    Ready,
    SequenceEvent,
    StepEvents,
    Submit,
    frame,
)
from npurt.serve.engine.wire import EngineLost, read

# A sequence fails after this many engine deaths in a row without a new token of the sequence.
MAX_DEATHS = 3
# The same limit for deaths by a SIGKILL from another sender, such as Linux when memory runs out.
MAX_KILLS = 30
MAX_OPENINGS = 3  # failed attempts in a row to open the model, after which all sequences fail
# The timeout for opening a model is OPEN_SECONDS plus the file's size / OPEN_BYTES.  A board may
# have to quantise the model again for its NPU.
OPEN_SECONDS = 300.0
OPEN_BYTES = 4e6  # bytes of the file per second
LONGEST_PAUSE = 30.0  # seconds between attempts to start an engine
CLOSE_SECONDS = 15.0  # timeout for an engine to exit by itself at the server's end
LINGER_SECONDS = 1.0  # timeout for an engine to exit after it closed its socket

log = logging.getLogger("npurt.serve")


class StuckOpening(EngineLost):
    """An engine took too long to open its model."""


class ModelReplaced(EngineLost):
    """An engine opened other files than the front or an earlier engine."""


class OpenSequence:
    """An open sequence: its `Submit` message, and the tokens generated so far."""

    def __init__(self, submit: Submit, sink: Callable[[SequenceEvent], None]) -> None:
        self.submit = submit
        self.sink = sink
        self.tokens: list[int] = []
        self.sent = False  # whether the sequence was submitted to the current process
        self.heard = False  # whether the current process generated a token of the sequence
        self.deaths = self.kills = 0  # numbers of dead processes in a row without a token
        self._scored = 0  # number of the prompt's log probabilities passed to `sink`
        self._repeated = 0  # number of those that the current process will send again

    def take(self, event: SequenceEvent) -> None:
        """Store the tokens of *event*, and pass *event* to `sink`."""
        if event.tokens:
            self.tokens += event.tokens
            self.heard = True
            self.deaths = self.kills = 0
        if event.prompt_logprobs:
            event = self._without_repeated(event)
        self.sink(event)

    def _without_repeated(self, event: SequenceEvent) -> SequenceEvent:
        count = len(event.prompt_logprobs)
        known = min(count, self._repeated)
        self._repeated -= known
        self._scored += count - known
        return replace(event, prompt_logprobs=event.prompt_logprobs[known:])

    @property
    def suspect(self) -> bool:
        """Whether this sequence may have killed an engine."""
        return self.deaths + self.kills > 0

    def again(self) -> Submit:
        """Return the message that continues the sequence after its last token."""
        self._repeated = self._scored
        return replace(self.submit, tokens=[*self.submit.tokens, *self.tokens])


def opening_seconds(path: str) -> float:
    """Return the timeout in seconds for opening the model of the file *path*."""
    try:
        folder, name = os.path.split(path)
        size = sum(os.path.getsize(os.path.join(folder, part)) for part in part_names(name))
    except OSError:  # the engine will report the error
        size = 0
    return OPEN_SECONDS + size / OPEN_BYTES


class EngineClient:
    """An engine process, restarted when it dies, and its open sequences.

    Args:
        command: The command line of the process; the number of its socket is appended.
        opening: The first message to the process.
        stuck: Seconds without a message after which a process with open sequences is killed.
        opens: Timeout in seconds for opening the model; by default `opening_seconds`.
        identity: The identity of files that the front has read, as in `Ready`.

    Attributes:
        failure: The error if the model could not be opened `MAX_OPENINGS` times in a row, or None.
        ready: The last `Ready` message; None until the model is open.
        restarts: Number of processes started after the first one.
    """

    def __init__(
        self,
        command: Sequence[str],
        opening: Open,
        *,
        stuck: float = 120.0,
        opens: float | None = None,
        identity: Mapping[str, str] | None = None,
    ) -> None:
        self.ready: Ready | None = None
        self.failure: NpurtError | None = None
        self.restarts = 0
        self._command = list(command)
        self._opening = replace(opening, version=VERSION)
        self._stuck = stuck
        self._opens = opening_seconds(opening.path) if opens is None else opens
        self._identity = dict(identity or {})  # what every process must report, by name
        self._openings = 0  # failed attempts in a row to open the model
        self._sequences: dict[int, OpenSequence] = {}
        self._ids = 0
        self._heard = 0.0  # the event loop's time of the last message
        self._steps = 0  # steps of the current process
        self._killed = False  # whether the front itself killed the current process
        self._writer: asyncio.StreamWriter | None = None  # set while the engine accepts messages
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: set[asyncio.Future[dict[str, float]]] = set()
        self._keeper: asyncio.Task[None] | None = None

    # --- Life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the process, and wait until its model is open.

        Raises:
            NpurtError: The model cannot be opened.
        """
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep(opened))
        await opened

    async def watch(self) -> None:
        """Wait for the end of the task that restarts the process.

        Raises:
            ModelReplaced: A new process opened other files; another error is a bug.
        """
        if self._keeper is not None:
            await asyncio.shield(self._keeper)

    async def close(self) -> None:
        """Stop the process and all sequences.  A second call does nothing."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._keeper = None

    @property
    def pid(self) -> int | None:
        """The process id; None while no process runs."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether the engine accepts messages now."""
        return self._writer is not None

    async def _keep(self, opened: asyncio.Future[None]) -> None:
        """Keep a process running; set *opened* when the first process has opened the model.

        If the first process cannot open the model, *opened* gets the error.
        """
        pause = 0.0
        while True:
            self._steps, self._killed = 0, False
            try:
                await self._session(opened)
            except NpurtError as error:
                again = isinstance(error, StuckOpening) and self._openings < MAX_OPENINGS
                if not opened.done() and not again:
                    opened.set_exception(error)
                    return
                log.error("the engine is lost: %s", error.what)
                if isinstance(error, ModelReplaced):
                    self._give_up(error)
                    raise
                self._count_death(error)
            finally:
                self._disconnect()
            pause = 0.0 if self._steps else min(LONGEST_PAUSE, 2 * pause or 0.1)
            await asyncio.sleep(pause)
            self.restarts += 1

    async def _session(self, opened: asyncio.Future[None]) -> None:
        """Run one process until it is lost."""
        try:
            with contextlib.ExitStack() as undo:
                ours, theirs = socket.socketpair()
                undo.callback(ours.close)
                with theirs:
                    process = self._process = subprocess.Popen(
                        [*self._command, str(theirs.fileno())],
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,  # so Ctrl-C signals the front only
                    )
                undo.pop_all()
        except OSError as error:
            raise EngineLost(
                f"the system starts no process: {error.strerror}",
                remedy="close other programs, or raise the limits that `ulimit -n -u` shows",
            ) from error
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            writer.write(frame(self._opening))
            self._openings += 1
            try:
                async with asyncio.timeout(self._opens):
                    answer = await read(reader)
            except TimeoutError as error:
                raise StuckOpening(
                    f"the model was not open after {self._opens:.0f} s, {self._openings} times",
                    remedy="see with npurt doctor whether the device answers, or use another one",
                ) from error
            if isinstance(answer, Failed):
                raise NpurtError(answer.what, remedy=answer.remedy)
            if not isinstance(answer, Ready) or answer.version != VERSION:
                raise ProtocolError(
                    f"the engine began with {answer!r:.60}",
                    remedy="run the same npurt on both sides",
                )
            self._require_same(answer.identity)
            self.ready, self._writer = answer, writer
            self._openings, self.failure = 0, None
            self._heard = asyncio.get_running_loop().time()
            self._submit_all()
            if not opened.done():
                opened.set_result(None)
            await self._listen(reader)
        finally:
            writer.close()
            await self._reap(process)

    def _require_same(self, found: Mapping[str, str]) -> None:
        """Check that a process reports the same identities as the front and the first process.

        Raises:
            ModelReplaced: It opened another file.
        """
        changed = [name for name in self._identity if self._identity[name] != found.get(name)]
        if changed:
            raise ModelReplaced(
                f"{changed[0]} was replaced while the server used it",
                remedy="start the server again: it then uses the new file",
            )
        self._identity = dict(found)

    async def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until *process* exits after its socket was closed; kill it after a timeout."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        closing = task is not None and task.cancelling()
        until = loop.time() + (CLOSE_SECONDS if closing else LINGER_SECONDS)
        while process.poll() is None:
            if loop.time() >= until:
                self._kill()
            await asyncio.sleep(0.01)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Handle the engine's messages, and kill its process if none arrives for too long."""
        watch = asyncio.create_task(self._watch())
        try:
            while True:
                message = await read(reader)
                self._heard = asyncio.get_running_loop().time()
                if isinstance(message, StepEvents):
                    self._steps += 1
                    for event in message.events:
                        self._take(event)
                elif isinstance(message, EngineStats):
                    self._answer(dict(message.values))
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, self._stuck / 4))
            silent = loop.time() - self._heard if self._sequences else 0.0
            if silent > self._stuck / 4:
                self._send(AskStats())  # a broken engine fails to answer and exits
            if silent > self._stuck:
                log.error("the engine sent no message for %.0f s: it is killed", self._stuck)
                self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._killed = True
            self._process.kill()

    def _disconnect(self) -> None:
        self._writer = None
        for future in self._asked:
            if not future.done():
                future.set_result({})
        self._asked.clear()

    def _count_death(self, error: NpurtError) -> None:
        """Count a death of the engine for each suspect sequence; end one with too many deaths.

        The engine runs the oldest submitted sequences.  Of these, each one that got no token from
        the dead process is a suspect.
        """
        if self._writer is None or self.ready is None:
            if self._openings >= MAX_OPENINGS:
                self._give_up(error)
            return  # the process died before it got a sequence
        self._disconnect()
        code = self._process.returncode if self._process else None
        killed = code == -signal.SIGKILL and not self._killed  # by another process
        sent = [sequence for sequence in self._sequences.values() if sequence.sent]
        for sequence in sent[: self.ready.sequences]:
            if sequence.heard:
                continue
            sequence.kills += killed
            sequence.deaths += not killed
            if sequence.deaths >= MAX_DEATHS or sequence.kills >= MAX_KILLS:
                self._take(SequenceEvent(sequence.submit.id, finish="error", error=(
                    f"the engine died {sequence.deaths + sequence.kills} times at this request: "
                    f"{error.what}",
                    error.remedy,
                )))  # fmt: skip

    def _give_up(self, error: NpurtError) -> None:
        """End all sequences with *error*: the model could not be opened again."""
        # The error message for clients contains no folder of the server.
        folder = os.path.dirname(self._opening.path)
        what, remedy = error.what, error.remedy
        if folder:
            texts = (text.replace(f"{folder}/", "") for text in (what, remedy))
            what, remedy = (text.replace(folder, "its folder") for text in texts)
        self.failure = NpurtError(what, remedy=remedy)
        for sequence in list(self._sequences):
            self._take(SequenceEvent(sequence, finish="unavailable", error=(what, remedy)))

    # --- Sequences ------------------------------------------------------------------------------

    def submit(self, submit: Submit, sink: Callable[[SequenceEvent], None]) -> int:
        """Begin a sequence and return its new id, which replaces the id in *submit*.

        Args:
            sink: Called with each event of the sequence.
        """
        self._ids += 1
        if not self._sequences:  # an idle engine sends no messages
            self._heard = asyncio.get_running_loop().time()
        self._sequences[self._ids] = OpenSequence(replace(submit, id=self._ids), sink)
        self._submit_next()
        return self._ids

    def _submit_all(self) -> None:
        """Submit the sequences to a new process, suspects first."""
        order = sorted(self._sequences.items(), key=lambda item: not item[1].suspect)
        self._sequences = dict(order)
        for sequence in self._sequences.values():
            sequence.sent = sequence.heard = False
        self._submit_next()

    def _submit_next(self) -> None:
        """Submit the sequences that the process lacks, up to and including the first suspect."""
        if self._writer is None:
            return
        for sequence in self._sequences.values():
            if not sequence.sent:
                sequence.sent = True
                self._send(sequence.again())
            if sequence.suspect:
                return

    def cancel(self, sequence: int) -> None:
        """End a sequence without further events; do nothing if it has ended."""
        if self._sequences.pop(sequence, None):
            self._send(Cancel(sequence))
            self._submit_next()

    def _take(self, event: SequenceEvent) -> None:
        sequence = self._sequences.get(event.id)
        if sequence is None:  # the sequence was cancelled
            return
        suspect = sequence.suspect
        if event.finish:
            del self._sequences[event.id]
        sequence.take(event)
        if suspect and (event.finish or not sequence.suspect):
            self._submit_next()

    def _send(self, message: Message) -> None:
        if self._writer is not None:
            self._writer.write(frame(message))

    # --- Counts ---------------------------------------------------------------------------------

    async def stats(self, seconds: float = 1.0) -> dict[str, float]:
        """Return the engine's counts by name; {} if it does not answer within *seconds*."""
        if self._writer is None:
            return {}
        future: asyncio.Future[dict[str, float]] = asyncio.get_running_loop().create_future()
        self._asked.add(future)
        try:
            self._send(AskStats())
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            return {}
        finally:
            self._asked.discard(future)

    def _answer(self, values: dict[str, float]) -> None:
        for future in self._asked:
            if not future.done():
                future.set_result(values)
        self._asked.clear()
