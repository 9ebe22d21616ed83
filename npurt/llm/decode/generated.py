"""Sampling, stop conditions and limits of one sequence, applied after each run of the model.

`Llama` evaluates one sequence in its context; an `Engine` evaluates many sequences together.  Both
use this module between two runs.
"""

import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from npurt.device.device import F32
from npurt.errors import GrammarError, LayoutError
from npurt.llm.decode.choose import Chooser, finish_of
from npurt.llm.decode.logprobs import TokenLogprob
from npurt.llm.decode.sampler import NO_TOKEN, TokenSampler
from npurt.llm.decode.stops import TextStream
from npurt.llm.session.context import Context
from npurt.llm.spec.speculator import Speculator
from npurt.llm.text.tokenizer import Tokenizer


class NewToken(NamedTuple):
    """A generated token.

    Attributes:
        text: The text that this token made final: no later token can change or remove it.
        logprob: The log probability of the token; None if the request does not want log
            probabilities.
    """

    id: int
    text: str
    logprob: TokenLogprob | None


class GeneratedSequence:
    """A sequence: the tokens of a prompt and of its completion so far.

    Args:
        history: The tokens of the prompt, and tokens that were generated earlier; at least one.
        prompt: The number of prompt tokens in *history*.
        sampler: Samples a token.
        stops: Texts that end the completion.
        stop_ids: Token ids that end the completion, in addition to the tokenizer's end tokens.
        limit: The largest number of tokens to generate; None means no limit.
        top: See `Chooser`.
        special: Whether the text contains control tokens.
        detokenize: Whether tokens are decoded to text; without text, there are no *stops*.

    Attributes:
        history: The tokens of prompt and completion so far.
        context: The context that has evaluated the tokens; None while the sequence waits.
        speculator: Drafts tokens; None decodes without drafts.
        limit: As in the arguments.
        accepted: The number of draft tokens that the latest step accepted.
        chosen: The number of sampled tokens, including the token that ended the sequence.
        finish: "" until the sequence ends; then a value of `npurt.llm.engine.events.Event.finish`.

    Raises:
        LayoutError: *history* is empty.
    """

    def __init__(
        self, history: list[int], prompt: int, tokenizer: Tokenizer, sampler: TokenSampler, *,
        stops: Sequence[str], stop_ids: frozenset[int], limit: int | None, top: int | None,
        special: bool = False, detokenize: bool = True,
    ) -> None:  # fmt: skip
        if not history:
            raise LayoutError("the prompt is empty", remedy="pass at least one token of text")
        self.history = history
        self.prompt = prompt
        self.context: Context | None = None
        self.speculator: Speculator | None = None
        self.accepted = self.chosen = 0
        self.finish = ""
        self._tokenizer = tokenizer
        self._ends = tokenizer.eog | stop_ids
        self._choose = Chooser(sampler, self._ends, top)
        self._stream = TextStream(tokenizer, stops, special=special) if detokenize else None
        self._starts: list[int] = []  # characters before each token with a log probability
        self.limit = limit
        if self._stream:
            for token in history[prompt:]:
                self._stream.push(token)  # the caller has the text of these tokens already

    @property
    def generated(self) -> int:
        """The number of generated tokens."""
        return len(self.history) - self.prompt

    @property
    def left(self) -> int | None:
        """The number of tokens that may still be generated; None means no limit."""
        return None if self.limit is None else max(0, self.limit - self.generated)

    @property
    def ready(self) -> bool:
        """Whether sampling need not wait for a grammar."""
        return self._choose.ready

    def draft(self, maximum: int) -> list[int]:
        """Return up to *maximum* draft tokens that the grammar allows."""
        if self.speculator is None:
            return []
        if self.limit is not None:
            maximum = min(maximum, self.limit - self.generated - 1)
        try:
            return self.speculator.draft(self.history, maximum, self._choose.fits)
        except GrammarError:
            return []  # `advance` raises this error

    def advance(
        self, rows: F32, draft: Sequence[int], seconds: float | None = None
    ) -> list[NewToken]:
        """Sample the next tokens, and roll the context back by the rejected draft tokens.

        Args:
            rows: Logits ``[1 + len(draft), V]`` of the last token and of *draft*.
            draft: Draft tokens, which the context has evaluated.
            seconds: The time of the run, if `draft` was called before it.

        Raises:
            Exception: An error of a logits processor or stopping criterion of the caller.
        """
        used, self.accepted = 1, 0
        new: list[NewToken] = []
        stream, start = self._stream, time.perf_counter()
        try:
            chosen = self._choose(rows, draft, self.history)
            self.accepted = len(chosen) - 1
            logprobs = self._choose.logprobs
            for used, token in enumerate(chosen, 1):
                if token == NO_TOKEN or token in self._ends:
                    self.finish = finish_of(token, self._tokenizer)
                    break
                self.history.append(token)
                logprob = logprobs[used - 1] if logprobs else None
                if logprob and stream:
                    self._starts.append(stream.length)
                new.append(NewToken(token, stream.push(token) if stream else "", logprob))
                if stream and stream.stopped:
                    self.finish = "stop"
                elif len(self.history) - self.prompt == self.limit:
                    self.finish = "length"
                if self.finish:
                    break
            self.chosen += used
        finally:
            if (wrong := 1 + len(draft) - used) and self.context:
                self.context.rollback(wrong)
            if self.speculator and seconds is not None:  # drafts count also if sampling failed
                seconds += time.perf_counter() - start
                self.speculator.observe(len(draft), self.accepted, seconds, rows[0])
        return new

    @property
    def within(self) -> int:
        """The number of tokens with a log probability that begin before the stop text."""
        if self._stream is None or not self._stream.stopped:
            return len(self._starts)
        return bisect_left(self._starts, self._stream.length)

    def rest(self) -> str:
        """Return the text that is not final yet, up to a stop text.  Call it after the end."""
        if self._stream is None or self._stream.stopped:
            return ""
        text = self._stream.finish()
        self.finish = "stop" if self._stream.stopped else self.finish
        return text
