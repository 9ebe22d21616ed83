"""Choose the tokens of one step from the logits of the last token and of the draft tokens."""

from collections.abc import Sequence, Set

from npurt.device.device import F32
from npurt.llm.decode.logprobs import TokenLogprob, logprob_of
from npurt.llm.decode.sampler import NO_TOKEN, TokenSampler
from npurt.llm.text.tokenizer import Tokenizer


class Chooser:
    """Samples the next tokens of one sequence and checks them against draft tokens.

    Args:
        sampler: Samples one token.
        ends: Token ids that end the sequence.
        top: The number of likeliest tokens to store with each token; None stores no log
            probabilities.

    Attributes:
        logprobs: The log probabilities of the tokens of the latest step.
        fits: A function that takes the history and draft tokens, and returns how many draft tokens
            the grammar accepts; None without a grammar.
    """

    def __init__(self, sampler: TokenSampler, ends: Set[int], top: int | None) -> None:
        self.logprobs: list[TokenLogprob] = []
        self.fits = None if sampler.constraint is None else sampler.constraint.fits
        self._sampler = sampler
        self._ends = ends
        self._top = top
        self._failed: BaseException | None = None  # raised by the next call

    @property
    def ready(self) -> bool:
        """Whether a call need not wait for the grammar; always true without a grammar."""
        constraint = self._sampler.constraint
        return constraint is None or constraint.ready

    def __call__(self, rows: F32, draft: Sequence[int], history: Sequence[int]) -> list[int]:
        """Sample one token from each row, up to the first token that differs from the draft.

        Each token is sampled from the same logits and with the same random number as without a
        draft.  So draft tokens affect only the time.  If sampling fails after the first token, this
        call returns the tokens before the error, and the next call raises the error.

        Args:
            rows: Logits ``[1 + len(draft), V]``.
            draft: The draft tokens.
            history: The tokens of the sequence so far.
        """
        chosen: list[int] = []
        self.logprobs.clear()
        if self._failed is not None:
            raise self._failed
        for i, row in enumerate(rows):
            try:
                token = self._sampler.sample(row, [*history, *chosen] if chosen else history)
            except BaseException as error:
                if not chosen or isinstance(error, KeyboardInterrupt):
                    raise
                self._failed = error
                break
            chosen.append(token)
            if self._top is not None and token != NO_TOKEN:
                self.logprobs.append(logprob_of(row, token, self._top))
            if i == len(draft) or token != draft[i] or token in self._ends:
                break
        return chosen


def finish_of(token: int, tokenizer: Tokenizer) -> str:
    """Return why *token* ends a sequence: ``"stop"`` for the caller's stop ids, else ``"end"``."""
    return "end" if token == NO_TOKEN or token in tokenizer.eog else "stop"
