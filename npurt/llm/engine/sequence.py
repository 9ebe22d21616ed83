"""A sequence of an engine: the scheduler's data about it, and the events of its steps."""

import functools
import math
import numbers
import time
import traceback
from collections.abc import Sequence as Tokens
from typing import Any

from npurt.device.device import F32
from npurt.errors import NpurtError, SettingError, brief
from npurt.llm.decode.generated import GeneratedSequence, NewToken
from npurt.llm.decode.logprobs import TokenLogprob, logprob_of
from npurt.llm.decode.options import GenerationRequest
from npurt.llm.decode.sampler import TokenSampler
from npurt.llm.engine.controller import BatchController, StepCost
from npurt.llm.engine.events import Event, Usage
from npurt.llm.engine.scores import Scores
from npurt.llm.session.context import Context
from npurt.llm.spec.drafter import Drafter
from npurt.llm.spec.opening import Drafts
from npurt.llm.spec.speculation import Speculation
from npurt.llm.text.tokenizer import Tokenizer
from npurt.runtime.open.arguments import integer


class Sequence(GeneratedSequence):
    """A sequence that an engine evaluates.

    Its tokens do not depend on when, or how often, they are evaluated: a sequence may lose its
    context at any time, and continue in another one.

    Args:
        id: The request id.
        tokens: The prompt, and tokens that were generated earlier.
        prompt: The number of prompt tokens in *tokens*; None means all.
        asked: The options of the request.
        priority: Sequences with a higher priority are evaluated first.
        deadline: Seconds from now after which the request ends.
        salt: Sequences share prefixes only with sequences of the same salt.
        reusable: The number of first tokens that later prompts are likely to begin with; 0 if
            unknown.
        prompt_logprobs: Whether to compute log probabilities of the prompt's tokens.
        detokenize: Whether events have text.

    Attributes (in addition to those of `GeneratedSequence`):
        cached: The number of first tokens that had been evaluated for another sequence; None before
            the sequence is admitted.
        arrival: The number of sequences that were submitted earlier.
        preempted: The number of preemptions of this sequence.
        echo: The text with which the next event begins.
        marks: Lengths at which recurrent states are copied to the prefix cache, in ascending order.

    Raises:
        LayoutError: *tokens* is empty.
        SettingError: The value of an argument is invalid, or a stop text is given without text.
    """

    def __init__(
        self, id: int, tokens: list[int], asked: GenerationRequest, tokenizer: Tokenizer, *,
        prompt: int | None = None, priority: int = 0, deadline: float | None = None,
        salt: str = "", reusable: int = 0, prompt_logprobs: bool = False, detokenize: bool = True,
    ) -> None:  # fmt: skip
        if prompt is None:
            prompt = len(tokens)
        else:
            prompt = integer("prompt_tokens", prompt, 1, max(1, len(tokens)))
        if asked.stops and not detokenize:
            raise SettingError(
                f"the stop text {brief(asked.stops[0])} is given without detokenize",
                remedy="pass detokenize=True, or stop at token ids",
            )
        super().__init__(
            tokens, prompt, tokenizer, asked.sampler(tokenizer, prompt, TokenSampler),
            stops=asked.stops, stop_ids=asked.stop_ids, limit=asked.max_tokens,
            top=asked.top_logprobs, special=asked.special, detokenize=detokenize,
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
        self._began: float | None = None  # when the sequence was admitted first
        self.marks: list[int] = []
        self._controller: BatchController | None = None
        self._top = asked.top_logprobs or 0
        self._scores: list[TokenLogprob] | None = [] if prompt_logprobs else None
        self._reported = 0  # log probabilities that an event had
        self.arrival = self.preempted = 0

    @property
    def order(self) -> tuple[int, int]:
        """The sort key of sequences: those with a smaller key are evaluated first."""
        return -self.priority, self.arrival

    @property
    def pending(self) -> int:
        """The number of tokens to evaluate before the next token can be sampled."""
        return len(self.history) - (self.context.n_tokens if self.context else 0)

    @property
    def prefilling(self) -> bool:
        """Whether a prompt token, or more than the last token, is to be evaluated."""
        done = self.context.n_tokens if self.context else 0
        return done < self.prompt or done < len(self.history) - 1

    @property
    def scoring(self) -> bool:
        """Whether log probabilities of the prompt are still to be computed."""
        return self._scores is not None and self.scored < self.prompt - 1

    @property
    def scored(self) -> int:
        """The number of prompt tokens, from the second on, whose log probability is known."""
        return len(self._scores or ())

    def recall(self, scores: Scores) -> None:
        """Take the log probabilities of the prompt that *scores* has, if they are requested."""
        if self._scores is not None:
            self._scores = scores.find(self.history[: self.prompt], self.salt, self._top)

    def score(self, rows: F32, start: int, scores: Scores) -> None:
        """Compute prompt log probabilities from logits ``[n, V]`` of tokens from *start* on.

        When the last one is known, all are added to *scores*.
        """
        assert self._scores is not None, "the sequence needs no log probabilities of its prompt"
        for at, logits in enumerate(rows, start + 1):
            if at == self.scored + 1 < self.prompt:
                self._scores.append(logprob_of(logits, self.history[at], self._top))
        if not self.scoring:
            scores.add(self.history[: self.prompt], self.salt, self._scores, self._top)

    def begin(self, context: Context, drafts: Drafts | None, step: StepCost) -> None:
        """Begin evaluation in *context*; create a speculator from *drafts*, if given."""
        self.context = context
        self._began = self._began or time.monotonic()
        if drafts:
            try:
                self.speculator = drafts.speculator(context, functools.partial(self._control, step))
            except (NpurtError, MemoryError) as error:
                self._continue_without_drafts(error)

    def _control(self, step: StepCost, drafter: Drafter, maximum: int) -> BatchController:
        if self._controller is None:  # after a preemption, the earlier controller is used
            self._controller = BatchController(step, drafter, maximum, self.limit)
        return self._controller

    def draft(self, maximum: int) -> list[int]:
        """Do as `GeneratedSequence.draft`; if drafting fails, continue without drafts."""
        try:
            return super().draft(maximum)
        except Exception as error:  # noqa: BLE001  `advance` raises errors of the grammar again
            self._continue_without_drafts(error)
            return []

    def _continue_without_drafts(self, error: Exception) -> None:
        """Stop drafting because of *error*, and note this in the report."""
        assert self.context, "a waiting sequence has no draft"
        note = f"a sequence continues without drafts: {str(error) or type(error).__name__}"
        if note not in (notes := self.context.model.ledger.notes):
            notes.append(note)
        self._drop_draft()

    def _drop_draft(self) -> None:
        speculator, self.speculator = self.speculator, None
        if speculator:
            speculator.drafter.release()

    def leave(self) -> Context | None:
        """Release the drafter and detach the context; return the context."""
        self._drop_draft()
        context, self.context = self.context, None
        return context

    def late(self, now: float) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline is not None and now >= self.deadline

    def sample(
        self, rows: F32, draft: Tokens[int], longest: int, seconds: float | None = None
    ) -> Event:
        """Sample the next tokens as `advance` does; return the event of the step.

        An error in a function of the caller ends the request.

        Args:
            longest: The largest number of tokens that a sequence can have.
            seconds: The time of the run, if `draft` was called before it.
        """
        if self.left == 0:  # *max_tokens* is 0
            return self.end("length")
        new: Tokens[NewToken] = ()
        failed: BaseException | None = None
        try:
            new = self.advance(rows, draft, seconds)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  includes SystemExit in a caller's function
            self.finish, failed = "error", error
        if len(self.history) > longest and not self.finish:
            self.finish = "context"
        return self._event(new, failed)

    def end(self, finish: str, error: BaseException | None = None) -> Event:
        """End the sequence with the reason *finish*; return its last event."""
        self.finish = finish
        return self._event((), error)

    def progress(self) -> Event:
        """Return an event with the number of prompt tokens evaluated so far."""
        return self._event()

    def _event(self, new: Tokens[NewToken] = (), error: BaseException | None = None) -> Event:
        ids: list[int] = []
        logprobs, usage = [], None
        text, self.echo = self.echo, ""
        if error and error.__traceback__:
            # The traceback's frames refer to the event: a cycle that delays the release of memory.
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
        scores = tuple(self._scores[self._reported :]) if self._scores else ()
        self._reported += len(scores)
        spent = time.monotonic() - self._began if self._began else 0.0
        return Event(
            self.id, ids, text, tuple(logprobs), self.finish, error, read, usage, cached, scores,
            spent,
        )  # fmt: skip


def _seconds(deadline: Any) -> float:
    """Return *deadline* as a number of seconds.

    Raises:
        SettingError: *deadline* is not a number.
    """
    number = isinstance(deadline, numbers.Real) and not isinstance(deadline, bool)
    if not number or math.isnan(deadline):
        raise SettingError(f"deadline is {brief(deadline)}", remedy="pass a number of seconds")
    return float(deadline)
