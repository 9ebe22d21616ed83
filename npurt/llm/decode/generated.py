"""A text that a model generates, and how it goes on after each run of the model.

`Llama` evaluates one such text in its context, an `Engine` evaluates many of them together.  What
happens between two runs is here, and is the same for both.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from npurt.device import F32
from npurt.errors import GrammarError, LayoutError
from npurt.llm.decode.choose import Chooser, finish_of
from npurt.llm.decode.logprobs import TokenLogprob
from npurt.llm.decode.sampler import NO_TOKEN, Sampler
from npurt.llm.decode.stops import TextStream
from npurt.llm.session.context import Context
from npurt.llm.spec.speculator import Speculator
from npurt.llm.text.tokenizer import Tokenizer


class NewToken(NamedTuple):
    """A token of a text.

    Attributes:
        text: What became final with it.
        logprob: None if not wanted.
    """

    id: int
    text: str
    logprob: TokenLogprob | None


class GeneratedText:
    """A text that a model generates.

    Args:
        history: The prompt, and what was generated before, if anything; at least one token.
        prompt: How many of these are the prompt's.
        sampler: Chooses a token.
        stops: Texts that end the text.
        stop_ids: Token ids that end it, beside those of the tokenizer.
        limit: The most tokens to generate; None: no limit.
        top: See `Chooser`.

    Attributes:
        history: Prompt and text so far.
        context: Where the tokens were evaluated; None while the text waits.
        speculator: Drafts tokens; None: nothing is drafted.
        limit: As given.
        right: How many draft tokens of the latest step were right.
        chosen: Tokens that were chosen, with the one that ended the text.
        finish: "" while the text goes on; then as in `npurt.llm.batch.events.Event`.

    Raises:
        LayoutError: There is no token.
    """

    def __init__(
        self, history: list[int], prompt: int, tokenizer: Tokenizer, sampler: Sampler, *,
        stops: Sequence[str], stop_ids: frozenset[int], limit: int | None, top: int | None,
    ) -> None:  # fmt: skip
        if not history:
            raise LayoutError("the prompt is empty", remedy="pass at least one token of text")
        self.history = history
        self.prompt = prompt
        self.context: Context | None = None
        self.speculator: Speculator | None = None
        self.right = self.chosen = 0
        self.finish = ""
        self._tokenizer = tokenizer
        self._ends = tokenizer.eog | stop_ids
        self._choose = Chooser(sampler, self._ends, top)
        self._stream = TextStream(tokenizer, stops)
        self._starts: list[int] = []  # characters before each token that `advance` chose
        self.limit = limit
        for token in history[prompt:]:
            self._stream.push(token)  # the caller has this text

    @property
    def generated(self) -> int:
        """Tokens of the text."""
        return len(self.history) - self.prompt

    @property
    def left(self) -> int | None:
        """The most tokens that may still be generated; None: no limit."""
        return None if self.limit is None else max(0, self.limit - self.generated)

    @property
    def ready(self) -> bool:
        """Whether its grammar is ready, if it has one."""
        return self._choose.ready

    def draft(self, most: int) -> list[int]:
        """Return up to *most* tokens that may follow, as far as the grammar allows them."""
        if self.speculator is None:
            return []
        if self.limit is not None:
            most = min(most, self.limit - self.generated - 1)
        try:
            return self.speculator.draft(self.history, most, self._choose.fits)
        except GrammarError:
            return []  # `advance` raises it again

    def advance(self, rows: F32, draft: Sequence[int]) -> list[NewToken]:
        """Choose the tokens that follow; take back tokens of the context that are not of the text.

        Args:
            rows: Logits ``[1 + draft, V]`` of the last token and of *draft*, which the context has.
            draft: Tokens that may follow.

        Raises:
            Exception: What functions of the caller raise.
        """
        used, self.right = 1, 0
        new: list[NewToken] = []
        try:
            chosen = self._choose(rows, draft, self.history)
            self.right = len(chosen) - 1
            logprobs = self._choose.logprobs
            for used, token in enumerate(chosen, 1):
                if token == NO_TOKEN or token in self._ends:
                    self.finish = finish_of(token, self._tokenizer)
                    break
                self.history.append(token)
                self._starts.append(self._stream.length)
                logprob = logprobs[used - 1] if logprobs else None
                new.append(NewToken(token, self._stream.push(token), logprob))
                if self._stream.stopped:
                    self.finish = "stop"
                elif len(self.history) - self.prompt == self.limit:
                    self.finish = "length"
                if self.finish:
                    break
            self.chosen += used
        finally:
            if (wrong := 1 + len(draft) - used) and self.context:
                self.context.rollback(wrong)
        return new

    @property
    def within(self) -> int:
        """How many of the tokens that `advance` chose have text before the stop text."""
        if not self._stream.stopped:
            return len(self._starts)
        return bisect_left(self._starts, self._stream.length)

    def rest(self) -> str:
        """Return the text that was held back, cut at a stop text; called after the end."""
        if self._stream.stopped:
            return ""
        text = self._stream.finish()
        self.finish = "stop" if self._stream.stopped else self.finish
        return text
