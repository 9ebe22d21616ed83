"""The completions of one request: decode tokens to text, and end at stop strings."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from npurt.llm.decode.calls.reading import Part
from npurt.llm.decode.stops import split_at_stop
from npurt.llm.text.tokenizer import Tokenizer
from npurt.serve.engine.protocol import Logprob, SequenceEvent, Submit
from npurt.serve.front.timings import CompletionTiming, timings
from npurt.serve.http.errors import HttpError

# HTTP status by `SequenceEvent.finish`; 500 for others.
STATUSES = {"refused": 400, "unavailable": 503}
Likely = tuple[int, Logprob]  # a token id and its log probabilities


class CompletionEngine(Protocol):
    """The engine as `Texts` uses it; see `engine.client`."""

    def submit(self, submit: Submit, sink: Callable[[SequenceEvent], None]) -> int:
        """Begin a sequence; return its id."""

    def cancel(self, sequence: int) -> None:
        """End a sequence without further events."""


@dataclass(slots=True)
class ChoiceDelta:
    """New output of a choice.

    Attributes:
        choice: The choice's number.
        text: New text, which no later token changes.
        part: The text as a parsed part of an answer, in a `Conversation`; None: the output has log
            probabilities or the end only.
        likely: The tokens of *text* with their log probabilities, if requested.
        finish: Why the choice ended: as in `SequenceEvent`; ``"stop"`` also for a stop string,
            ``"calls"`` in a `Conversation`.
        vector: The embedding, as in `SequenceEvent`.
        prompt: Log probabilities of the prompt's next tokens, as in `SequenceEvent`.
        tokens: The tokens generated since the last piece.
    """

    choice: int
    text: str = ""
    likely: list[Likely] = field(default_factory=list)
    finish: str | None = None
    vector: str | None = None
    prompt: Sequence[Logprob] = ()
    tokens: Sequence[int] = ()
    part: Part | None = None


class Choice:
    """One completion of a request.

    Args:
        tokenizer: The model's tokenizer.
        number: The choice's number.
        stops: Strings that end the completion and are not part of it.
        shown: Ids of control tokens whose text is part of the output.

    Attributes:
        count: Number of generated tokens.
        read: Number of the prompt's tokens evaluated so far.
        cached: Number of the prompt's tokens that were in the prefix cache.
        finish: Why the completion ended, as in `ChoiceDelta`; None: it continues.
        stopped: The stop string that ended the completion, or None.
        new_line: Whether the completion has a line break.
        prompt_tokens: Number of the prompt's tokens.
        timing: The times of the completion.
        sampling: The sampling settings, with a seed.
        limit: Upper bound on the generated tokens; None: no limit.
        task: The engine's id of the sequence.
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
        self.new_line = False
        self.prompt_tokens = 0
        self.timing = CompletionTiming()
        self.sampling: Mapping[str, Any] = {}
        self.limit: int | None = None
        self.task = 0
        self._tokenizer = tokenizer
        self._stream = tokenizer.stream(special=False, continued=True)
        self._stops = tuple(stops)
        self._shown = shown
        self._held = ""  # text that may be the beginning of a stop string
        self._given = 0  # number of characters returned so far
        # Tokens not returned yet, each with the position of its first character.
        self._likely: list[tuple[int, Likely]] = []
        self._tokens: list[int] = []  # tokens that were not part of a piece yet

    def take(self, event: SequenceEvent) -> ChoiceDelta:
        """Return the new output of *event*."""
        self.read, self.cached = max(self.read, event.read), max(self.cached, event.cached)
        text = ""
        for i, token in enumerate(event.tokens):  # a stop string may end before the last token
            if i < len(event.logprobs):
                start = self._given + len(self._held)
                self._likely.append((start, (token, event.logprobs[i])))
            self.count += 1
            self._tokens.append(token)
            text += self._shown_of(self._text(token))
            if self.finish:
                break
        if event.finish and not self.finish:
            text += self._shown_of(self._stream.finish())
        if event.finish and not self.finish:
            text, self.finish = text + self._held, event.finish
            self._given, self._held = self._given + len(self._held), ""
        self.new_line = self.new_line or "\n" in text
        piece = ChoiceDelta(
            self.number, text, self._released(), self.finish, event.vector, event.prompt_logprobs
        )
        if piece.text or piece.likely or piece.finish:
            piece.tokens, self._tokens = self._tokens, []
        return piece

    def timings(self) -> dict[str, Any]:
        """Return llama.cpp's object ``timings`` of this completion."""
        return timings([self], self.prompt_tokens, self.cached)

    def _shown_of(self, text: str) -> str:
        """Append *text*; return the text before the part that may begin a stop string."""
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
        """Return the tokens whose first character has been returned."""
        if not self._likely:
            return []
        whole = self.finish is not None and self.stopped is None
        final = [likely for start, likely in self._likely if start < self._given or whole]
        del self._likely[: len(final)]  # the list is sorted by position
        return final


class Texts:
    """The completions of one request.  Iterate over `pieces` once, and always call `cancel`.

    Args:
        engine: The engine that generates the completions.
        submits: The engine's `Submit` message for each choice.
        choices: The completions.
        done: Called once, when the last completion has ended or is cancelled.
        patience: Seconds for which a stream waits for its first output before it begins.
        predict_ms: Time from the first token to the end of each completion; None: no limit.

    Attributes:
        choices: The completions.
        prompt_tokens: Number of tokens of all prompts; a prompt of several choices counts once.
        progress: Whether `pieces` yields None also after each evaluated part of a prompt.
    """

    def __init__(
        self,
        engine: CompletionEngine,
        submits: Sequence[Submit],
        choices: Sequence[Choice],
        prompt_tokens: int,
        done: Callable[["Texts"], None],
        patience: float = 0.0,
        predict_ms: int | None = None,
    ) -> None:
        self.choices = list(choices)
        self.prompt_tokens = prompt_tokens
        self.progress = False
        self._patience = patience
        self._predict_ms = predict_ms
        self._timed: set[int] = set()  # choices whose time is running
        self._prompts: dict[tuple[int, ...], list[Choice]] = {}  # choices by prompt
        self._engine = engine
        self._done = done
        self._updates: asyncio.Queue[tuple[int, SequenceEvent] | HttpError | None] = asyncio.Queue()
        self._first = asyncio.Event()  # a choice has output, or failed
        self._refused: HttpError | None = None  # the error of a choice without output
        self._open: dict[int, int] = {}  # the engine's sequence id by choice
        for i, submit in enumerate(submits):
            self._prompts.setdefault(tuple(submit.tokens), []).append(self.choices[i])
            self.choices[i].prompt_tokens = submit.prompt
            self.choices[i].sampling = submit.sampling
            self.choices[i].limit = submit.max_tokens
            self._open[i] = engine.submit(submit, functools.partial(self._put, i))
            self.choices[i].task = self._open[i]

    @property
    def first_open(self) -> int:
        """The number of the first open choice; keep-alive events contain this number."""
        return next(iter(self._open), 0)

    @property
    def running(self) -> list[Choice]:
        """The open choices that the engine evaluates."""
        return [self.choices[i] for i in self._open if self.choices[i].timing.began is not None]

    @property
    def completion_tokens(self) -> int:
        """Number of generated tokens of all choices."""
        return sum(choice.count for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens that no choice evaluated: they were in the prefix cache."""
        found = sum(min(each.cached for each in same) for same in self._prompts.values())
        return min(self.prompt_tokens, found)

    @property
    def read(self) -> int:
        """Number of prompt tokens that have been evaluated or were in the prefix cache."""
        return sum(max(each.read for each in same) for same in self._prompts.values())

    def timings(self) -> dict[str, Any]:
        """Return llama.cpp's object ``timings`` of all choices."""
        return timings(self.choices, self.prompt_tokens, self.cached_tokens)

    def figures(self) -> str:
        """Return the numbers of tokens, for the line of the request in the log."""
        cached = f" ({self.cached_tokens} cached)" if self.cached_tokens else ""
        return f"{self.prompt_tokens} tokens of prompt{cached}, {self.completion_tokens} generated"

    async def pieces(self, every: float | None = None) -> AsyncIterator[ChoiceDelta | None]:
        """Yield new output until all choices have ended; None after *every* seconds without output.

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

    async def begun(self) -> None:
        """Wait for the first output, or *patience* seconds.

        Raises:
            HttpError: A choice failed before its first output.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await self._first.wait()
        if self._refused is not None:
            raise self._refused

    def progress_now(self) -> dict[str, Any]:
        """Return llama.cpp's field ``prompt_progress``; {} if not requested or after a first token.

        The field tells how many tokens of the prompts have been evaluated.
        """
        if not self.progress or self.completion_tokens:
            return {}
        spent = max(choice.timing.prompt for choice in self.choices)
        return {
            "prompt_progress": {
                "total": self.prompt_tokens,
                "cache": self.cached_tokens,
                "processed": self.read,
                "time_ms": round(1e3 * spent),
            }
        }

    async def whole(self) -> list[ChoiceDelta]:
        """Wait until all choices have ended; return the whole output of each choice."""
        texts = [ChoiceDelta(choice.number) for choice in self.choices]
        async for piece in self.pieces():
            if piece is not None:
                text = texts[piece.choice]
                text.text += piece.text
                text.likely += piece.likely
                text.prompt = [*text.prompt, *piece.prompt]
                text.finish = piece.finish
        return texts

    def cancel(self) -> None:
        """End the choices that are still open."""
        for sequence in self._open.values():
            self._engine.cancel(sequence)
        self._open.clear()
        self._over()

    def stop(self, number: int) -> None:
        """End one choice."""
        if number in self._open:
            self._engine.cancel(self._open.pop(number))

    def fail(self, error: HttpError) -> None:
        """End all choices; `pieces` raises *error*."""
        for sequence in self._open.values():
            self._engine.cancel(sequence)
        if not self._first.is_set():
            self._refused = error
            self._first.set()
        self._updates.put_nowait(error)

    def give_up(self, error: HttpError) -> None:
        """End all choices as `fail` does, and call *done* even if the client does not read."""
        self.fail(error)
        self._over()

    def _over(self) -> None:
        done, self._done = self._done, lambda _: None
        done(self)

    def _put(self, number: int, event: SequenceEvent) -> None:
        self.choices[number].timing.take(event)
        if event.error is not None and not self._first.is_set():
            self._refused = _failed(event)
        if event.tokens and self._predict_ms is not None and number not in self._timed:
            self._timed.add(number)
            loop = asyncio.get_running_loop()
            loop.call_later(self._predict_ms / 1e3, self._end, number, event.id)
        if event.error is not None or event.tokens or event.finish or self.progress:
            self._first.set()
        self._updates.put_nowait((number, event))

    def _end(self, number: int, sequence: int) -> None:
        """End a choice whose time is over."""
        if number in self._open:
            self._engine.cancel(self._open[number])
            self._updates.put_nowait((number, SequenceEvent(sequence, finish="length")))

    def _taken(self, number: int, event: SequenceEvent) -> ChoiceDelta | None:
        """Return the new output of *event*; None if *event* has none."""
        if number not in self._open:  # a stop string has ended the choice
            return None
        if event.error is not None:
            raise _failed(event)
        piece = self.choices[number].take(event)
        if piece.finish:
            sequence = self._open.pop(number)
            if not event.finish:
                self._engine.cancel(sequence)
        return piece if piece.text or piece.likely or piece.finish or piece.prompt else None


def _failed(event: SequenceEvent) -> HttpError:
    assert event.error is not None
    what, remedy = event.error
    return HttpError(STATUSES.get(event.finish or "", 500), what, remedy=remedy)


class _Silence:
    """A timer that puts None into a queue after each *every* seconds without output."""

    def __init__(self, every: float | None, queue: asyncio.Queue[Any]) -> None:
        self._every = every
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._timer = self._loop.call_later(every, self._look) if every else None

    def over(self) -> None:
        """Restart the timer: there was output."""
        self._since = self._loop.time()

    def end(self) -> None:
        """Stop the timer."""
        if self._timer:
            self._timer.cancel()

    def _look(self) -> None:
        assert self._every is not None
        now = self._loop.time()
        if now >= self._since + self._every:
            self._queue.put_nowait(None)
            self._since = now
        self._timer = self._loop.call_at(self._since + self._every, self._look)
