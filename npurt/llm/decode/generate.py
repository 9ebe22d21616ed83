"""Generate text: evaluate the prompt, then sample token by token until the sequence ends."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from npurt.errors import SettingError
from npurt.llm.decode.generated import GeneratedSequence, NewToken
from npurt.llm.decode.logprobs import TokenLogprob
from npurt.llm.decode.sampler import TokenSampler
from npurt.llm.decode.step import DecodeStep
from npurt.llm.session.context import Context
from npurt.llm.spec.assistant import shared
from npurt.llm.spec.controller import Controller
from npurt.llm.spec.opening import Drafts
from npurt.llm.spec.speculation import Speculation
from npurt.llm.spec.speculator import Speculator


@dataclass(slots=True)
class Timing:
    """Counts, times, finish reason and log probabilities of a generation."""

    prompt_tokens: int = 0
    reused_tokens: int = 0  # prompt tokens in the cached prefix
    prefill_seconds: float = 0.0
    generated_tokens: int = 0
    decode_seconds: float = 0.0
    finish: str = ""  # "end", "stop", "length" or "context"
    speculation: Speculation | None = None  # None without a speculator
    logprobs: list[TokenLogprob] = field(default_factory=list)  # one for each token before a stop

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens evaluated per second."""
        count = self.prompt_tokens - self.reused_tokens
        return count / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second, without the first token: its time counts as prefill."""
        count = self.generated_tokens - 1
        return count / self.decode_seconds if self.decode_seconds and count > 0 else 0.0

    def line(self) -> str:
        """Return the counts and rates as one line of text."""
        return (
            f"prefill {self.prompt_tokens - self.reused_tokens} tokens, "
            f"{self.prefill_rate:.1f} tokens/s; "
            f"decode {self.generated_tokens} tokens, {self.decode_rate:.1f} tokens/s"
        )


class Generator:
    """The state that successive generations in a context share.

    Args:
        context: The context.

    Attributes:
        timing: The counts and times of the latest completion.
        timings: The counts and times of each completion of the latest call, in order.
        drafts: Creates speculators for sequences of the model; None decodes without drafts.
        speculator: Drafts tokens for this context; None decodes without drafts.
        step: Runs the steps of generations.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.step = DecodeStep(context.model.config.n_vocab)
        self.timing = Timing()
        self.timings: tuple[Timing, ...] = (self.timing,)
        self.drafts: Drafts | None = None
        self.speculator: Speculator | None = None

    def draft_with(self, drafts: Drafts, opened: contextlib.ExitStack) -> None:
        """Use draft tokens from *drafts* from now on; *opened* releases the drafter at its end."""
        self.drafts = drafts
        self.speculator = drafts.speculator(self.context)
        opened.callback(self.speculator.drafter.release)


class Generation:
    """The text of one completion, as an iterable of strings; iterate once."""

    def __init__(
        self,
        generator: Generator,
        prompt: list[int],
        sampler: TokenSampler,
        stops: tuple[str, ...],
        max_tokens: int | None,
        *,
        stop_ids: frozenset[int] = frozenset(),
        top_logprobs: int | None = None,
        special: bool = False,
    ) -> None:
        self._generator = generator
        self._context = generator.context
        self._speculator = generator.speculator
        self._sequence = GeneratedSequence(
            list(prompt), len(prompt), generator.context.model.tokenizer, sampler, stops=stops,
            stop_ids=stop_ids, limit=max_tokens, top=top_logprobs, special=special,
        )  # fmt: skip
        self._timing = Timing(prompt_tokens=len(prompt))

    def __iter__(self) -> Iterator[str]:
        """Yield text as soon as it is final: whole characters that cannot begin a stop text."""
        for new in self._tokens():
            if new.text:
                yield new.text
        rest = self._sequence.rest()
        self._timing.finish = self._sequence.finish
        del self._timing.logprobs[self._sequence.within :]
        if rest:
            yield rest

    def tokens(self) -> Iterator[int]:
        """Yield the sampled tokens without the end token; use this or iteration, not both."""
        return (new.id for new in self._tokens())

    def _tokens(self) -> Iterator[NewToken]:
        sequence, timing = self._sequence, self._timing
        tokens = self._begin()
        start = time.perf_counter()
        while True:
            for new in tokens:
                timing.generated_tokens += 1
                timing.decode_seconds = time.perf_counter() - start
                if new.logprob:
                    timing.logprobs.append(new.logprob)
                yield new
            if sequence.finish:
                break
            tokens = self._step()
        if timing.generated_tokens < sequence.chosen:  # the end token
            timing.generated_tokens = sequence.chosen
            timing.decode_seconds = time.perf_counter() - start
        timing.finish = sequence.finish

    def _begin(self) -> list[NewToken]:
        """Evaluate the prompt; return the first token, or an empty list if `max_tokens` is 0."""
        context, sequence, timing = self._context, self._sequence, self._timing
        with context.lock:
            self._generator.timing = timing
            self._generator.timings = (timing,)
            if sequence.left == 0:
                sequence.finish = "length"
                return []
            sequence.context = context
            start = time.perf_counter()
            new = sequence.advance(context.eval_last(self._reuse())[None], [])
            timing.prefill_seconds = time.perf_counter() - start
            if self._speculator is not None:
                timing.speculation = self._expect(self._speculator.controller)
                sequence.speculator = self._speculator
            self._changes = context.state.changes
        return new

    def _expect(self, controller: Controller) -> Speculation:
        """Begin a sequence in *controller*; return the object that counts its draft tokens."""
        timing, limit = self._timing, self._sequence.limit
        each = timing.prefill_seconds / (timing.prompt_tokens - timing.reused_tokens)
        space = self._context.n_ctx - self._context.n_tokens
        return controller.begin(None if limit is None else min(limit, space), each)

    def _step(self) -> list[NewToken]:
        """Evaluate the last token and draft tokens; return the sampled tokens.

        Raises:
            SettingError: Another call has used the model's context since the last step.
        """
        context, sequence, step = self._context, self._sequence, self._generator.step
        with context.lock:
            state = context.state
            if self._generator.timing is not self._timing or state.changes != self._changes:
                raise SettingError(
                    "another call used the model during this generation",
                    remedy="finish or drop one generation before the next; for two at once, "
                    "open the file twice",
                )
            space = context.n_ctx - len(state.tokens) - 1
            if space < 0 and not context.can_shift:
                sequence.finish = "context"
                return []
            draft = sequence.draft(space) if sequence.speculator else []
            context.prepare(1 + len(draft))
            while not step.run([(sequence, draft)]):
                context.prepare(1 + len(draft))
            new = sequence.advance(step.take(1 + len(draft)), draft, step.seconds)
            self._changes = state.changes
        return new

    def _reuse(self) -> list[int]:
        """Rewind the context to its common prefix with the prompt; return the rest of the prompt.

        At least one token of the prompt remains to be evaluated.
        """
        context, prompt = self._context, self._sequence.history
        equal = shared(context.state.tokens, prompt[:-1])
        reused = context.state.reach(min(equal, context.state.own))
        context.rewind(reused)
        self._timing.reused_tokens = reused
        return prompt[reused:]
