"""The texts of one request while they are generated: tokens become text, and stop at stop texts."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from npurt.llm.decode.stops import split_at_stop
from npurt.llm.text.tokenizer import Tokenizer
from npurt.serve.engine.protocol import Event, Logprob, Submit
from npurt.serve.http.errors import HttpError

STATUSES = {"refused": 400, "unavailable": 503}  # of errors, by how a text ended
Likely = tuple[int, Logprob]  # a token and its log probability


class Engine(Protocol):
    """What generates tokens; see `engine.client`."""

    def submit(self, submit: Submit, sink: Callable[[Event], None]) -> int:
        """Begin a sequence; return its id."""

    def cancel(self, sequence: int) -> None:
        """End a sequence without another event."""


@dataclass(slots=True)
class Piece:
    """New output of a choice.

    Attributes:
        choice: Its number.
        text: New text, which is final.
        likely: Tokens of the text with their log probabilities, if wanted.
        finish: How the text ended: as in `Event`; ``"stop"`` also for a stop text.
        vector, prompt: Of `Event`: the embedding, log probabilities of the prompt.
    """

    choice: int
    text: str = ""
    likely: list[Likely] = field(default_factory=list)
    finish: str | None = None
    vector: str | None = None
    prompt: Sequence[Logprob] = ()


class Choice:
    """One text.

    Args:
        tokenizer: Of the model.
        number: Of the choice.
        stops: Texts that end the text and are not part of it.
        shown: Ids of markup that are part of the text.

    Attributes:
        count: Tokens so far.
        read: Tokens of the prompt that have been read.
        cached: Those that were in the cache.
        stopped: The stop text that ended it, or None.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        number: int,
        stops: Sequence[str] = (),
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self.number = number
        self.count = 0
        self.read = 0
        self.cached = 0
        self.finish: str | None = None
        self.stopped: str | None = None
        self._tokenizer = tokenizer
        self._stream = tokenizer.stream(special=False, continued=True)
        self._stops = tuple(stops)
        self._shown = shown
        self._held = ""
        self._given = 0  # characters that are final
        self._likely: list[tuple[int, Likely]] = []  # held back, with where each token begins

    def take(self, event: Event) -> Piece:
        """Return the new piece of text of *event*."""
        self.read, self.cached = max(self.read, event.read), max(self.cached, event.cached)
        text = ""
        for i, token in enumerate(event.tokens):  # a stop text may come before the last one
            if i < len(event.logprobs):
                start = self._given + len(self._held)
                self._likely.append((start, (token, event.logprobs[i])))
            self.count += 1
            text += self._shown_of(self._text(token))
            if self.finish:
                break
        if event.finish and not self.finish:
            text += self._shown_of(self._stream.finish())
        if event.finish and not self.finish:
            text, self.finish = text + self._held, event.finish
            self._given, self._held = self._given + len(self._held), ""
        return Piece(
            self.number, text, self._released(), self.finish, event.vector, event.prompt_logprobs
        )

    def _shown_of(self, text: str) -> str:
        """Return what is final with *text*, and hold back what may begin a stop text."""
        whole = self._held + text
        shown, self._held, stopped = split_at_stop(whole, self._stops)
        self._given += len(shown)
        if stopped:
            self.stopped = next(s for s in self._stops if whole.startswith(s, len(shown)))
            self.finish = "stop"
        return shown

    def _text(self, token: int) -> str:
        if token in self._shown:
            return self._stream.finish() + self._tokenizer.decode([token])
        return self._stream.push(token)

    def _released(self) -> list[Likely]:
        """Return the tokens that begin in text that is final."""
        if not self._likely:
            return []
        whole = self.finish is not None and self.stopped is None
        final = [likely for start, likely in self._likely if start < self._given or whole]
        del self._likely[: len(final)]  # they begin one after another
        return final


class Texts:
    """The choices of one request.  Iterate once; `cancel` in any case.

    Args:
        engine: Where they are generated.
        submits: What is asked of it, for each choice.
        choices: The texts.
        done: Called once, when the last one has ended or is cancelled.

    Attributes:
        choices: As given.
        prompt_tokens: Of all prompts; that of several choices counts once.
        progress: Whether `pieces` yields None also when more of a prompt was read.
    """

    def __init__(
        self,
        engine: Engine,
        submits: Sequence[Submit],
        choices: Sequence[Choice],
        prompt_tokens: int,
        done: Callable[["Texts"], None],
    ) -> None:
        self.choices = list(choices)
        self.prompt_tokens = prompt_tokens
        self.progress = False
        self._began = asyncio.get_running_loop().time()
        self._prompts: dict[tuple[int, ...], list[Choice]] = {}  # choices by prompt
        self._engine = engine
        self._done = done
        self._updates: asyncio.Queue[tuple[int, Event] | HttpError | None] = asyncio.Queue()
        self._open: dict[int, int] = {}  # id of the engine by choice
        for i, submit in enumerate(submits):
            self._prompts.setdefault(tuple(submit.tokens), []).append(self.choices[i])
            self._open[i] = engine.submit(submit, functools.partial(self._put, i))

    @property
    def first_open(self) -> int:
        """The number of the first choice that goes on, which keep-alive events name."""
        return next(iter(self._open), 0)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(choice.count for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """Tokens of prompts that no choice had to read, because they were in the cache."""
        found = sum(min(each.cached for each in same) for same in self._prompts.values())
        return min(self.prompt_tokens, found)

    @property
    def read(self) -> int:
        """Tokens of prompts that have been read, or were in the cache."""
        return sum(max(each.read for each in same) for same in self._prompts.values())

    async def pieces(self, every: float | None = None) -> AsyncIterator[Piece | None]:
        """Yield what is new until all choices have ended; None after *every* seconds of silence.

        Raises:
            HttpError: A choice failed.
        """
        silence = _Silence(every, self._updates)
        try:
            while self._open:
                update = await self._updates.get()
                if update is None:
                    yield None
                    continue
                if isinstance(update, HttpError):
                    raise update
                before = self.read if self.progress else 0
                piece = self._taken(*update)
                if piece is not None:
                    silence.over()
                    yield piece
                elif self.progress and self.read > before:
                    yield None
        finally:
            silence.end()
            self.cancel()

    def progress_now(self) -> dict[str, Any]:
        """Return llama.cpp's field of how far the prompts are read; {} if that is not wanted.

        It is wanted until the first token.
        """
        if not self.progress or self.completion_tokens:
            return {}
        spent = asyncio.get_running_loop().time() - self._began
        return {
            "prompt_progress": {
                "total": self.prompt_tokens,
                "cache": self.cached_tokens,
                "processed": self.read,
                "time_ms": round(1e3 * spent),
            }
        }

    async def whole(self) -> list[Piece]:
        """Return each text when all have ended."""
        texts = [Piece(choice.number) for choice in self.choices]
        async for piece in self.pieces():
            if piece is not None:
                text = texts[piece.choice]
                text.text += piece.text
                text.likely += piece.likely
                text.prompt = [*text.prompt, *piece.prompt]
                text.finish = piece.finish
        return texts

    def cancel(self) -> None:
        """End the texts that are still going on."""
        for sequence in self._open.values():
            self._engine.cancel(sequence)
        self._open.clear()
        self._over()

    def stop(self, number: int) -> None:
        """End one text."""
        if number in self._open:
            self._engine.cancel(self._open.pop(number))

    def fail(self, error: HttpError) -> None:
        """End all texts with *error*, which the reader gets when it asks for more."""
        for sequence in self._open.values():
            self._engine.cancel(sequence)
        self._updates.put_nowait(error)

    def give_up(self, error: HttpError) -> None:
        """End all texts as `fail` does; a client that does not read occupies no place then."""
        self.fail(error)
        self._over()

    def _over(self) -> None:
        done, self._done = self._done, lambda _: None
        done(self)

    def _put(self, number: int, event: Event) -> None:
        self._updates.put_nowait((number, event))

    def _taken(self, number: int, event: Event) -> Piece | None:
        """Return the new piece of *event*; None if a client would see nothing of it."""
        if number not in self._open:  # it stopped at a text
            return None
        if event.error is not None:
            what, remedy = event.error
            status = STATUSES.get(event.finish or "", 500)
            raise HttpError(status, what, remedy=remedy)
        piece = self.choices[number].take(event)
        if piece.finish:
            sequence = self._open.pop(number)
            if not event.finish:
                self._engine.cancel(sequence)
        return piece if piece.text or piece.likely or piece.finish or piece.prompt else None


class _Silence:
    """Puts None into a queue when nothing was heard for *every* seconds, again and again."""

    def __init__(self, every: float | None, queue: asyncio.Queue[Any]) -> None:
        self._every = every
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._timer = self._loop.call_later(every, self._look) if every else None

    def over(self) -> None:
        """Take note that something was heard."""
        self._since = self._loop.time()

    def end(self) -> None:
        """Stop."""
        if self._timer:
            self._timer.cancel()

    def _look(self) -> None:
        assert self._every is not None
        now = self._loop.time()
        if now >= self._since + self._every:
            self._queue.put_nowait(None)
            self._since = now
        self._timer = self._loop.call_at(self._since + self._every, self._look)
