"""Generate text: evaluate the prompt, then sample token by token until an end."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from npurt.errors import LayoutError, SettingError
from npurt.llm.decode.choose import Chooser, finish_of
from npurt.llm.decode.logprobs import TokenLogprob
from npurt.llm.decode.sampler import NO_TOKEN as NO_TOKEN
from npurt.llm.decode.sampler import Sampler
from npurt.llm.decode.stops import TextStream
from npurt.llm.session.context import Context
from npurt.llm.spec.controller import Controller
from npurt.llm.spec.speculation import Speculation
from npurt.llm.spec.speculator import Speculator


@dataclass(slots=True)
class Timing:
    """Counts and times of a generation, how it ended, and log probabilities if wanted."""

    prompt_tokens: int = 0
    reused_tokens: int = 0  # of the prompt, found in the cache
    prefill_seconds: float = 0.0
    generated_tokens: int = 0
    decode_seconds: float = 0.0
    finish: str = ""  # "end", "stop", "length" or "context"
    speculation: Speculation | None = None  # None: nothing drafted
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the tokens of the text

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens evaluated per second."""
        count = self.prompt_tokens - self.reused_tokens
        return count / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first token, whose time counts as prefill."""
        count = self.generated_tokens - 1
        return count / self.decode_seconds if self.decode_seconds and count > 0 else 0.0

    def line(self) -> str:
        """Return the counts as a sentence."""
        return (
            f"prefill {self.prompt_tokens - self.reused_tokens} tokens, "
            f"{self.prefill_rate:.1f} tokens/s; "
            f"decode {self.generated_tokens} tokens, {self.decode_rate:.1f} tokens/s"
        )


class Generator:
    """Continues token ids in a context, by one `Generation` at a time.

    Args:
        context: The context.
        speculator: Drafts tokens; None: plain decoding.

    Attributes:
        timing: Of the latest generation.
    """

    def __init__(self, context: Context, speculator: Speculator | None = None) -> None:
        self.context = context
        self.speculator = speculator
        self.timing = Timing()


class Generation:
    """An iterable of pieces of text; iterate once."""

    def __init__(
        self,
        generator: Generator,
        prompt: list[int],
        sampler: Sampler,
        stops: tuple[str, ...],
        max_tokens: int | None,
        *,
        stop_ids: frozenset[int] = frozenset(),
        top_logprobs: int | None = None,
    ) -> None:
        if not prompt:
            raise LayoutError("the prompt is empty", remedy="pass at least one token of text")
        self._generator = generator
        self._context = generator.context
        self._speculator = generator.speculator
        self._tokenizer = generator.context.model.tokenizer
        self._prompt = prompt
        self._stops = stops
        self._ends = self._tokenizer.eog | stop_ids
        self._choose = Chooser(sampler, self._ends, top_logprobs)
        self._limit = max_tokens
        self._timing = Timing(prompt_tokens=len(prompt))

    def __iter__(self) -> Iterator[str]:
        """Yield text as soon as it is final: whole characters that cannot belong to a stop text."""
        stream = TextStream(self._tokenizer, self._stops)
        for token in self.tokens():
            text = stream.push(token)
            if stream.stopped:
                self._stop()
            if text:
                yield text
            if stream.stopped:
                return
        text = stream.finish()
        if stream.stopped:
            self._timing.finish = "stop"
        if text:
            yield text

    def tokens(self) -> Iterator[int]:
        """Yield the sampled tokens without the end token; iterate once, in place of the text."""
        timing = self._timing
        history = list(self._prompt)
        chosen = self._begin(history)
        start = time.perf_counter()
        while chosen:
            for beyond, token in zip(reversed(range(len(chosen))), chosen, strict=True):
                self._beyond = beyond
                timing.generated_tokens += 1
                timing.decode_seconds = time.perf_counter() - start
                if token == NO_TOKEN or token in self._ends:
                    timing.finish = finish_of(token, self._tokenizer)
                    return
                history.append(token)
                at = len(chosen) - 1 - beyond
                timing.logprobs += self._choose.logprobs[at : at + 1]
                yield token
            if timing.generated_tokens == self._limit:
                timing.finish = "length"
                return
            chosen = self._step(history)

    def _begin(self, history: list[int]) -> list[int]:
        """Evaluate the prompt; return the first token, or none if `max_tokens` is 0."""
        context, timing = self._context, self._timing
        with context.lock:
            self._generator.timing = timing
            if self._limit == 0:
                timing.finish = "length"
                return []
            start = time.perf_counter()
            chosen = self._choose(context.eval_last(self._reuse())[None], [], history)
            timing.prefill_seconds = time.perf_counter() - start
            if self._speculator is not None:
                timing.speculation = self._expect(self._speculator.controller)
            self._changes = context.state.changes
        return chosen

    def _expect(self, controller: Controller) -> Speculation:
        """Begin a text in *controller*; return its counts."""
        timing = self._timing
        each = timing.prefill_seconds / (timing.prompt_tokens - timing.reused_tokens)
        room = self._context.n_ctx - self._context.n_tokens
        return controller.begin(None if self._limit is None else min(self._limit, room), each)

    def _step(self, history: list[int]) -> list[int]:
        """Return the tokens of one step; none if the context is full.

        Raises:
            SettingError: The model was used otherwise since the last step.
        """
        context = self._context
        with context.lock:
            if self._generator.timing is not self._timing or context.state.changes != self._changes:
                raise SettingError(
                    "something else used the model while it was generating",
                    remedy="finish or drop one generation before the next; for two at once, "
                    "open the file twice",
                )
            if context.n_tokens >= context.n_ctx and not context.can_shift:
                self._timing.finish = "context"
                return []
            chosen = self._next(history)
            self._changes = context.state.changes
        return chosen

    def _next(self, history: list[int]) -> list[int]:
        """Evaluate the last token and its draft, if there is one; return the tokens that follow."""
        context = self._context
        if self._speculator is None:
            return self._choose(context.eval_last(history[-1:])[None], [], history)
        room = context.n_ctx - context.n_tokens - 1
        if self._limit is not None:
            room = min(room, self._limit - self._timing.generated_tokens - 1)
        return self._speculator.step(context, history, room, self._choose, self._choose.fits)

    def _stop(self) -> None:
        """End at a stop text; take back the accepted draft tokens beyond it."""
        context = self._context
        self._timing.finish = "stop"
        with context.lock:
            if self._beyond and context.state.changes == self._changes:
                context.rollback(self._beyond)

    def _reuse(self) -> list[int]:
        """Keep the common prefix of context and prompt; return the rest of the prompt."""
        shared = 0
        for have, want in zip(self._context.history, self._prompt[:-1], strict=False):
            if have != want:
                break
            shared += 1
        shared = self._context.state.reach(min(shared, self._context.state.own))
        self._context.rewind(shared)
        self._timing.reused_tokens = shared
        return self._prompt[shared:]
