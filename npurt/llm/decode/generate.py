"""Generate text: evaluate the prompt, then sample token by token until an end."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from npurt.errors import SettingError
from npurt.llm.decode.generated import GeneratedText, NewToken
from npurt.llm.decode.logprobs import TokenLogprob
from npurt.llm.decode.sampler import Sampler
from npurt.llm.session.context import Context
from npurt.llm.spec.assistant import shared
from npurt.llm.spec.controller import Controller
from npurt.llm.spec.opening import Drafts
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
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of tokens with text of the text

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

    Attributes:
        timing: Of the latest generation.
        timings: Of the texts of the latest generation, in order.
        drafts: What drafts for the texts of the model; None: nothing.
        speculator: Drafts tokens for this context; None: plain decoding.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.timing = Timing()
        self.timings: tuple[Timing, ...] = (self.timing,)
        self.drafts: Drafts | None = None
        self.speculator: Speculator | None = None

    def draft_with(self, drafts: Drafts, opened: contextlib.ExitStack) -> None:
        """Draft tokens from now on; *opened* releases the memory for it."""
        self.drafts = drafts
        self.speculator = drafts.speculator(self.context)
        opened.callback(self.speculator.drafter.release)


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
        self._generator = generator
        self._context = generator.context
        self._speculator = generator.speculator
        self._text = GeneratedText(
            list(prompt), len(prompt), generator.context.model.tokenizer, sampler, stops=stops,
            stop_ids=stop_ids, limit=max_tokens, top=top_logprobs,
        )  # fmt: skip
        self._timing = Timing(prompt_tokens=len(prompt))

    def __iter__(self) -> Iterator[str]:
        """Yield text as soon as it is final: whole characters that cannot belong to a stop text."""
        for new in self._tokens():
            if new.text:
                yield new.text
        rest = self._text.rest()
        self._timing.finish = self._text.finish
        del self._timing.logprobs[self._text.within :]
        if rest:
            yield rest

    def tokens(self) -> Iterator[int]:
        """Yield the sampled tokens without the end token; iterate once, in place of the text."""
        return (new.id for new in self._tokens())

    def _tokens(self) -> Iterator[NewToken]:
        text, timing = self._text, self._timing
        tokens = self._begin()
        start = time.perf_counter()
        while True:
            for new in tokens:
                timing.generated_tokens += 1
                timing.decode_seconds = time.perf_counter() - start
                if new.logprob:
                    timing.logprobs.append(new.logprob)
                yield new
            if text.finish:
                break
            tokens = self._step()
        if timing.generated_tokens < text.chosen:  # the end token
            timing.generated_tokens = text.chosen
            timing.decode_seconds = time.perf_counter() - start
        timing.finish = text.finish

    def _begin(self) -> list[NewToken]:
        """Evaluate the prompt; return the first token, or none if `max_tokens` is 0."""
        context, text, timing = self._context, self._text, self._timing
        with context.lock:
            self._generator.timing = timing
            self._generator.timings = (timing,)
            if text.left == 0:
                text.finish = "length"
                return []
            text.context = context
            start = time.perf_counter()
            rows = context.eval_last(self._reuse())[None]
            new = text.advance(rows, [])
            timing.prefill_seconds = time.perf_counter() - start
            if self._speculator is not None:
                timing.speculation = self._expect(self._speculator.controller)
                text.speculator = self._speculator
            self._changes = context.state.changes
        return new

    def _expect(self, controller: Controller) -> Speculation:
        """Begin a text in *controller*; return its counts."""
        timing, limit = self._timing, self._text.limit
        each = timing.prefill_seconds / (timing.prompt_tokens - timing.reused_tokens)
        room = self._context.n_ctx - self._context.n_tokens
        return controller.begin(None if limit is None else min(limit, room), each)

    def _step(self) -> list[NewToken]:
        """Evaluate the last token and its draft, if there is one; return the tokens that follow.

        Raises:
            SettingError: The model was used otherwise since the last step.
        """
        context, text, speculator = self._context, self._text, self._speculator
        with context.lock:
            state = context.state
            if self._generator.timing is not self._timing or state.changes != self._changes:
                raise SettingError(
                    "something else used the model while it was generating",
                    remedy="finish or drop one generation before the next; for two at once, "
                    "open the file twice",
                )
            room = context.n_ctx - state.length - 1
            if room < 0 and not context.can_shift:
                text.finish = "context"
                return []
            draft = text.draft(room) if speculator else []
            start = time.perf_counter()
            rows = context.eval_rows([text.history[-1], *draft])
            new = text.advance(rows, draft)
            if speculator:
                seconds = time.perf_counter() - start
                speculator.observe(len(draft), text.right, seconds, rows[0])
            self._changes = state.changes
        return new

    def _reuse(self) -> list[int]:
        """Keep the common prefix of context and prompt; return the rest of the prompt."""
        context, prompt = self._context, self._text.history
        equal = shared(context.state.tokens, prompt[:-1])
        reused = context.state.reach(min(equal, context.state.own))
        context.rewind(reused)
        self._timing.reused_tokens = reused
        return prompt[reused:]
