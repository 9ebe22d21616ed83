"""The front's side of an engine: its process, and its sequences, which outlive the process.

When the process dies, or says nothing for too long, it is started again, and every open sequence is
submitted with the tokens that it has.  Sequences that may have killed it are submitted one at a
time: each when the one before has a token.  So the one that kills engines takes no others with it.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace

from npurt.errors import NpurtError
from npurt.gguf_parts import part_names
from npurt.serve.engine.protocol import (
    VERSION,
    AskStats,
    Cancel,
    Event,
    Failed,
    Message,
    Open,
    ProtocolError,
    Ready,
    Stats,
    Step,
    Submit,
    frame,
)
from npurt.serve.engine.wire import EngineLost, read

# A sequence ends after so many engines in a row that died before they gave a token of it.
MOST_DEATHS = 3
MOST_KILLS = 30  # by signal 9, which somebody else sends, or Linux when memory runs out
MOST_OPENINGS = 3  # attempts in a row to open the model: then all sequences end
# What opening a model may take at most: a board may have to quantise it again for its NPU.
OPEN_SECONDS = 300.0
OPEN_BYTES = 4e6  # of the file a second
LONGEST_PAUSE = 30.0  # seconds between attempts to start an engine
CLOSE_SECONDS = 15.0  # what an engine gets to end by itself
LINGER_SECONDS = 1.0  # the same, of one that closed its socket

log = logging.getLogger("npurt.serve")


class StuckOpening(EngineLost):
    """An engine took too long to open its model."""


class OpenSequence:
    """A sequence that is open: what was asked for, and the tokens so far."""

    def __init__(self, submit: Submit, sink: Callable[[Event], None]) -> None:
        self.submit = submit
        self.sink = sink
        self.tokens: list[int] = []
        self.sent = self.heard = False  # to the process of now; whether it gave a token
        self.deaths = self.kills = 0  # processes in a row that gave no token
        self._scored = 0  # log probabilities of the prompt that were passed on
        self._repeated = 0  # of these, how many the present process repeats

    def take(self, event: Event) -> None:
        """Remember what *event* gave, and pass it on."""
        if event.tokens:
            self.tokens += event.tokens
            self.heard = True
            self.deaths = self.kills = 0
        if event.prompt_logprobs:
            event = self._without_repeated(event)
        self.sink(event)

    def _without_repeated(self, event: Event) -> Event:
        count = len(event.prompt_logprobs)
        known = min(count, self._repeated)
        self._repeated -= known
        self._scored += count - known
        return replace(event, prompt_logprobs=event.prompt_logprobs[known:])

    @property
    def suspect(self) -> bool:
        """Whether it may be what killed an engine."""
        return self.deaths + self.kills > 0

    def again(self) -> Submit:
        """Return what continues the sequence at its next token."""
        self._repeated = self._scored
        return replace(self.submit, tokens=[*self.submit.tokens, *self.tokens])


def opening_seconds(path: str) -> float:
    """Return how long an engine may take to open the model of the file *path*."""
    try:
        folder, name = os.path.split(path)
        size = sum(os.path.getsize(os.path.join(folder, part)) for part in part_names(name))
    except OSError:  # the engine says what is wrong
        size = 0
    return OPEN_SECONDS + size / OPEN_BYTES


class Engine:
    """An engine, and its sequences.

    Args:
        command: What starts the process; the number of its socket follows.
        opening: The first message.
        stuck: Seconds after which a process that has work and says nothing is killed.
        opens: Seconds after which a process that still opens its model is killed; by default
            `OPEN_SECONDS`, and more by the size of the file.

    Attributes:
        failure: Why the model could not be opened again, several times in a row; or None.
        ready: What the engine last said of itself; None until the model is open.
        restarts: How often a process was started in place of another.
    """

    def __init__(
        self,
        command: Sequence[str],
        opening: Open,
        *,
        stuck: float = 120.0,
        opens: float | None = None,
    ) -> None:
        self.ready: Ready | None = None
        self.failure: NpurtError | None = None
        self.restarts = 0
        self._command = list(command)
        self._opening = replace(opening, version=VERSION)
        self._stuck = stuck
        self._opens = opening_seconds(opening.path) if opens is None else opens
        self._openings = 0  # in a row, without success
        self._sequences: dict[int, OpenSequence] = {}
        self._ids = 0
        self._heard = 0.0
        self._steps = 0  # of the process that runs now
        self._killed = False  # by this front
        self._writer: asyncio.StreamWriter | None = None  # set while the engine takes messages
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
        """Wait until the task that keeps the process running ends, which only a bug causes."""
        if self._keeper is not None:
            await asyncio.shield(self._keeper)

    async def close(self) -> None:
        """End the process and all sequences.  A second call does nothing."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._keeper = None

    @property
    def pid(self) -> int | None:
        """The number of the process; None while there is none."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether the engine takes messages now."""
        return self._writer is not None

    async def _keep(self, opened: asyncio.Future[None]) -> None:
        """Keep a process running; tell *opened* whether the first one opened the model."""
        pause = 0.0
        while True:
            self._steps, self._killed = 0, False
            try:
                await self._session(opened)
            except NpurtError as error:
                again = isinstance(error, StuckOpening) and self._openings < MOST_OPENINGS
                if not opened.done() and not again:
                    opened.set_exception(error)
                    return
                log.error("the engine is lost: %s", error.what)
                self._count_death(error)
            finally:
                self._disconnect()
            pause = 0.0 if self._steps else min(LONGEST_PAUSE, 2 * pause or 0.1)
            await asyncio.sleep(pause)
            self.restarts += 1

    async def _session(self, opened: asyncio.Future[None]) -> None:
        """Run one process until it is lost."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = self._process = subprocess.Popen(
                    [*self._command, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for the front
                )
            except OSError as error:
                ours.close()
                raise EngineLost(
                    f"the system starts no process: {error.strerror}",
                    remedy="close other programs, or raise the limit of processes",
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

    async def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of *process*, whose socket is closed; kill it if it does not come."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        closing = task is not None and task.cancelling()
        until = loop.time() + (CLOSE_SECONDS if closing else LINGER_SECONDS)
        while process.poll() is None:
            if loop.time() >= until:
                self._kill()
            await asyncio.sleep(0.01)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Pass on what the engine says, and kill it when it says nothing for too long."""
        watch = asyncio.create_task(self._watch())
        try:
            while True:
                message = await read(reader)
                self._heard = asyncio.get_running_loop().time()
                if isinstance(message, Step):
                    self._steps += 1
                    for event in message.events:
                        self._take(event)
                elif isinstance(message, Stats):
                    self._answer(dict(message.values))
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, self._stuck / 4))
            silent = loop.time() - self._heard if self._sequences else 0.0
            if silent > self._stuck / 4:
                self._send(AskStats())  # a broken engine ends at that
            if silent > self._stuck:
                log.error("the engine has said nothing for %.0f s: it is killed", self._stuck)
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
        """Count a death for each suspect sequence; end those with too many.

        An engine runs the oldest sequences.  Those of them that got no token from it are suspect.
        """
        if self._writer is None or self.ready is None:
            if self._openings >= MOST_OPENINGS:
                self._give_up(error)
            return  # it died before it knew a sequence
        self._disconnect()
        code = self._process.returncode if self._process else None
        killed = code == -signal.SIGKILL and not self._killed  # by somebody else
        sent = [sequence for sequence in self._sequences.values() if sequence.sent]
        for sequence in sent[: self.ready.sequences]:
            if sequence.heard:
                continue
            sequence.kills += killed
            sequence.deaths += not killed
            if sequence.deaths >= MOST_DEATHS or sequence.kills >= MOST_KILLS:
                self._take(Event(sequence.submit.id, finish="error", error=(
                    f"the engine died {sequence.deaths + sequence.kills} times at this request: "
                    f"{error.what}",
                    error.remedy,
                )))  # fmt: skip

    def _give_up(self, error: NpurtError) -> None:
        """End all sequences: the model cannot be opened again now."""
        folder = os.path.join(os.path.dirname(self._opening.path), "")  # clients need not know more
        what, remedy = (text.replace(folder, "") for text in (error.what, error.remedy))
        self.failure = NpurtError(what, remedy=remedy)
        for sequence in list(self._sequences):
            self._take(Event(sequence, finish="unavailable", error=(what, remedy)))

    # --- Sequences ------------------------------------------------------------------------------

    def submit(self, submit: Submit, sink: Callable[[Event], None]) -> int:
        """Begin a sequence; *sink* gets its events, and the id of *submit* is replaced."""
        self._ids += 1
        if not self._sequences:  # the engine had nothing to say
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
        """Submit what the process does not have yet, up to the first suspect without a token."""
        if self._writer is None:
            return
        for sequence in self._sequences.values():
            if not sequence.sent:
                sequence.sent = True
                self._send(sequence.again())
            if sequence.suspect:
                return

    def cancel(self, sequence: int) -> None:
        """End a sequence without another event, if it is open."""
        if self._sequences.pop(sequence, None):
            self._send(Cancel(sequence))
            self._submit_next()

    def _take(self, event: Event) -> None:
        sequence = self._sequences.get(event.id)
        if sequence is None:  # it was cancelled
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
        """Return counts of the engine; none if it does not answer in time."""
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
