"""A text that an engine generates: what the scheduler knows of it, and the events of its steps."""

import functools
import math
import numbers
import time
import traceback
from collections.abc import Sequence as Tokens
from typing import Any

from npurt.device import F32
from npurt.errors import NpurtError, SettingError, brief
from npurt.llm.batch.controller import BatchController, StepCost
from npurt.llm.batch.events import Event, Usage
from npurt.llm.decode.generated import GeneratedSequence, NewToken
from npurt.llm.decode.logprobs import TokenLogprob, logprob_of
from npurt.llm.decode.options import Request as Asked
from npurt.llm.decode.sampler import Sampler
from npurt.llm.session.context import Context
from npurt.llm.spec.drafter import Drafter
from npurt.llm.spec.opening import Drafts
from npurt.llm.spec.speculation import Speculation
from npurt.llm.text.tokenizer import Tokenizer
from npurt.runtime.open.arguments import integer


class Sequence(GeneratedSequence):
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
        prompt_logprobs: Whether log probabilities of the prompt's tokens are wanted.

    Attributes (others are those of `GeneratedSequence`):
        cached: First tokens that had been evaluated for another sequence; None before it begins.
        arrival: The number of sequences that came before.
        preempted: How often it lost its pages.
        echo: Text that the next event begins with.
        marks: Lengths at which states that only go forward are kept, in ascending order.

    Raises:
        LayoutError: There is no token.
        SettingError: An argument makes no sense.
    """

    def __init__(
        self, id: int, tokens: list[int], asked: Asked, tokenizer: Tokenizer, *,
        prompt: int | None = None, priority: int = 0, deadline: float | None = None,
        salt: str = "", reusable: int = 0, prompt_logprobs: bool = False,
    ) -> None:  # fmt: skip
        if prompt is None:
            prompt = len(tokens)
        else:
            prompt = integer("prompt_tokens", prompt, 1, max(1, len(tokens)))
        super().__init__(
            tokens, prompt, tokenizer, asked.sampler(tokenizer, prompt, Sampler),
            stops=asked.stops, stop_ids=asked.stop_ids, limit=asked.max_tokens,
            top=asked.top_logprobs,
        )  # fmt: skip
        self.id = id
        self.priority = integer("priority", priority)
        self.reusable = integer("reusable", reusable, 0)
        if not isinstance(salt, str):
            raise SettingError(f"salt is {brief(salt)}", remedy="pass a str")
        self.salt = salt
        self.echo = ""
        self.deadline = None if deadline is None else time.monotonic() + _seconds(deadline)
        self.cached: int | None = None
        self.marks: list[int] = []
        self._controller: BatchController | None = None
        self._top = asked.top_logprobs or 0
        self._scored = 1 if prompt_logprobs else prompt  # tokens of the prompt
        self._scores: list[TokenLogprob] = []  # for the next event
        self.arrival = self.preempted = 0

    @property
    def order(self) -> tuple[int, int]:
        """Sequences with a lower one come first."""
        return -self.priority, self.arrival

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
    def scoring(self) -> bool:
        """Whether the log probability of some token of the prompt is still to be found."""
        return self._scored < self.prompt

    def score(self, rows: F32, start: int) -> None:
        """Take the logits ``[n, V]`` after the tokens from *start* on."""
        for at, logits in enumerate(rows, start + 1):
            if self._scored == at < self.prompt:
                self._scores.append(logprob_of(logits, self.history[at], self._top))
                self._scored += 1

    def begin(self, context: Context, drafts: Drafts | None, step: StepCost) -> None:
        """Begin to be evaluated in *context*, with *drafts* as far as they pay in a step."""
        self.context = context
        if drafts:
            try:
                self.speculator = drafts.speculator(context, functools.partial(self._control, step))
            except (NpurtError, MemoryError) as error:
                self._go_on_without(error)

    def _control(self, step: StepCost, drafter: Drafter, most: int) -> BatchController:
        if self._controller is None:  # otherwise the text was preempted
            self._controller = BatchController(step, drafter, most, self.limit)
        return self._controller

    def draft(self, most: int) -> list[int]:
        """Do as `GeneratedSequence.draft`; when the draft fails, go on without."""
        try:
            return super().draft(most)
        except Exception as error:  # noqa: BLE001  if a grammar's, `advance` raises it again
            self._go_on_without(error)
            return []

    def _go_on_without(self, error: Exception) -> None:
        """Note that there are no drafts any more, because of *error*."""
        assert self.context, "a text that waits has no draft"
        note = f"a text goes on without drafts: {str(error) or type(error).__name__}"
        if note not in (notes := self.context.model.ledger.notes):
            notes.append(note)
        self._drop_draft()

    def _drop_draft(self) -> None:
        speculator, self.speculator = self.speculator, None
        if speculator:
            speculator.drafter.release()

    def leave(self) -> Context | None:
        """Release the draft's memory of the text; take its context away, and return it."""
        self._drop_draft()
        context, self.context = self.context, None
        return context

    def late(self, now: float) -> bool:
        """Return whether its deadline has passed."""
        return self.deadline is not None and now >= self.deadline

    def go_on(
        self, rows: F32, draft: Tokens[int], longest: int, seconds: float | None = None
    ) -> Event:
        """Choose the tokens that follow, as `advance` does.

        An error of the request, such as one of its own functions, ends it.

        Args:
            longest: The most tokens that can be evaluated.
            seconds: The time of the run, after a call of `draft`.
        """
        if self.left == 0:  # only the prompt was to be evaluated
            return self.end("length")
        new: Tokens[NewToken] = ()
        failed: BaseException | None = None
        try:
            new = self.advance(rows, draft)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  SystemExit of a caller's function, too
            self.finish, failed = "error", error
        if self.speculator and seconds is not None:
            self.speculator.observe(len(draft), self.right, seconds, rows[0])
        if len(self.history) > longest and not self.finish:
            self.finish = "context"
        return self._event(new, failed)

    def end(self, finish: str, error: BaseException | None = None) -> Event:
        """End the text."""
        self.finish = finish
        return self._event((), error)

    def progress(self) -> Event:
        """Say how much of the prompt was read."""
        return self._event()

    def _event(self, new: Tokens[NewToken] = (), error: BaseException | None = None) -> Event:
        ids: list[int] = []
        logprobs, usage = [], None
        text, self.echo = self.echo, ""
        if error and error.__traceback__:
            # The frames would refer to the error's event, and stay until garbage is collected.
            where = "".join(traceback.format_tb(error.__traceback__))
            error.add_note(f"It was raised in the engine's thread:\n{where}")
            error = error.with_traceback(None)
        for id, piece, logprob in new:
            ids.append(id)
            text += piece
            if logprob:
                logprobs.append(logprob)
        if self.finish:
            text += self.rest()
            said = self._controller.text if self._controller else Speculation()
            usage = Usage(
                self.prompt, self.cached or 0, self.generated, said.drafted,
                said.accepted,
            )  # fmt: skip
        read = min(self.context.n_tokens, self.prompt) if self.context else 0
        cached = min(self.cached or 0, self.prompt)
        scores, self._scores = tuple(self._scores), []
        return Event(
            self.id, ids, text, tuple(logprobs), self.finish, error, read, usage, cached, scores
        )


def _seconds(deadline: Any) -> float:
    """Return *deadline* as a number of seconds.

    Raises:
        SettingError: It is none.
    """
    number = isinstance(deadline, numbers.Real) and not isinstance(deadline, bool)
    if not number or math.isnan(deadline):
        raise SettingError(f"deadline is {brief(deadline)}", remedy="pass a number of seconds")
    return float(deadline)
