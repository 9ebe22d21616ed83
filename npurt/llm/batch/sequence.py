"""A text that an engine generates: its tokens, how they are chosen, where it ends."""

import time
from collections.abc import Sequence as Tokens

from npurt.device import F32
from npurt.errors import GrammarError, LayoutError
from npurt.llm.batch.events import Event, Usage
from npurt.llm.batch.guesses import Guesses
from npurt.llm.decode.choose import Chooser, finish_of
from npurt.llm.decode.logprobs import TokenLogprob
from npurt.llm.decode.options import Request as Asked
from npurt.llm.decode.sampler import NO_TOKEN, Sampler
from npurt.llm.decode.stops import TextStream
from npurt.llm.session.context import Context
from npurt.llm.text.tokenizer import Tokenizer


class Sequence:
    """A text that an engine generates.

    It does not depend on when its tokens are evaluated, or how often: a sequence may lose its
    context at any time, and goes on with another one.

    Args:
        id: A number that the caller chose.
        tokens: The prompt, and what was generated of the text before, if anything.
        prompt: How many of *tokens* are the prompt's; None: all.
        asked: Sampling and limits.
        priority: Sequences with a higher one come first.
        deadline: Seconds from now after which the text ends.
        salt: Sequences of different salts share no prefixes.
        reusable: The number of first tokens that later prompts are likely to begin with, if known.

    Attributes:
        history: Prompt and text so far.
        context: Where the tokens were evaluated; None while the sequence waits.
        cached: First tokens that had been evaluated for another sequence.
        finish: As in `Event`.
        arrival: The number of sequences that came before.
        marks: Lengths at which states that only go forward are kept, in ascending order.

    Raises:
        LayoutError: There is no token.
    """

    def __init__(
        self, id: int, tokens: list[int], asked: Asked, tokenizer: Tokenizer, *,
        prompt: int | None = None, priority: int = 0, deadline: float | None = None,
        salt: str = "", reusable: int = 0,
    ) -> None:  # fmt: skip
        if not tokens:
            raise LayoutError("the prompt is empty", remedy="pass at least one token of text")
        self.id = id
        self.history = tokens
        self.prompt = len(tokens) if prompt is None else prompt
        self.priority, self.salt, self.reusable = priority, salt, reusable
        self.deadline = None if deadline is None else time.monotonic() + deadline
        self.context: Context | None = None
        self.cached = 0
        self.finish = ""
        self.marks: list[int] = []
        self.guesses = Guesses()
        self.arrival = 0
        self._tokenizer = tokenizer
        self._ends = tokenizer.eog | asked.stop_ids
        sampler = asked.sampler(tokenizer, self.prompt, Sampler)
        self._choose = Chooser(sampler, self._ends, asked.top_logprobs)
        self._stream = TextStream(tokenizer, asked.stops)
        self._limit = asked.max_tokens
        self._error: Exception | None = None
        for token in tokens[self.prompt :]:
            self._stream.push(token)  # the caller has this text

    @property
    def order(self) -> tuple[int, int]:
        """Sequences with a lower one come first."""
        return -self.priority, self.arrival

    @property
    def generated(self) -> int:
        """Tokens of the text."""
        return len(self.history) - self.prompt

    @property
    def pending(self) -> int:
        """Tokens that are to be evaluated before the next one can be chosen."""
        return len(self.history) - (self.context.n_tokens if self.context else 0)

    @property
    def reading(self) -> bool:
        """Whether tokens before the last one are to be evaluated first, or all of the prompt."""
        done = self.context.n_tokens if self.context else 0
        return done < self.prompt or done < len(self.history) - 1

    @property
    def left(self) -> int | None:
        """The most tokens that may still be generated; None: no limit."""
        return None if self._limit is None else max(0, self._limit - self.generated)

    @property
    def ready(self) -> bool:
        """Whether its grammar is ready, if it has one."""
        return self._choose.ready

    def draft(self, most: int) -> list[int]:
        """Return up to *most* tokens that may follow, as far as the grammar allows them."""
        drafted = self.guesses.propose(self.history, most)
        if not drafted or self._choose.fits is None:
            return drafted
        try:
            return drafted[: self._choose.fits(self.history, drafted)]
        except GrammarError:
            return []  # `advance` raises it again

    def late(self, now: float) -> bool:
        """Return whether its deadline has passed."""
        return self.deadline is not None and now >= self.deadline

    def advance(self, rows: F32, draft: Tokens[int], longest: int) -> Event:
        """Choose the tokens that follow, by logits ``[1 + draft, V]``.

        An error of the request, such as one of its own functions, ends it.

        Args:
            longest: The most tokens that can be evaluated.
        """
        try:
            chosen = self._choose(rows, draft, self.history)
        except Exception as error:  # noqa: BLE001  functions of the caller raise what they like
            return self.end("error", error)
        if draft:
            self.guesses.observe(len(draft), len(chosen) - 1)
        tokens: list[int] = []
        text = ""
        for token in chosen:
            if token == NO_TOKEN or token in self._ends:
                self.finish = finish_of(token, self._tokenizer)
                break
            self.history.append(token)
            tokens.append(token)
            text += self._stream.push(token)
            if self._stream.stopped:
                self.finish = "stop"
            elif self.left == 0:
                self.finish = "length"
            elif len(self.history) > longest:
                self.finish = "context"
            if self.finish:
                break
        return self._event(tokens, text, self._choose.logprobs[: len(tokens)])

    def end(self, finish: str, error: Exception | None = None) -> Event:
        """End the text."""
        self.finish, self._error = finish, error
        return self._event([], "", [])

    def progress(self) -> Event:
        """Say how much of the prompt was read."""
        return self._event([], "", [])

    def _event(self, tokens: list[int], text: str, logprobs: list[TokenLogprob]) -> Event:
        usage = None
        if self.finish:
            if not self._stream.stopped:
                text += self._stream.finish()
                self.finish = "stop" if self._stream.stopped else self.finish
            usage = Usage(
                self.prompt, min(self.cached, self.prompt), self.generated,
                self.guesses.drafted, self.guesses.accepted,
            )  # fmt: skip
        read = min(self.context.n_tokens, self.prompt) if self.context else 0
        return Event(self.id, tokens, text, tuple(logprobs), self.finish, self._error, read, usage)
