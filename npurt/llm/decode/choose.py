"""Choose the tokens of one step, from the logits of the last token and of drafted ones."""

from collections.abc import Sequence, Set

from npurt.device import F32
from npurt.llm.decode.logprobs import TokenLogprob, logprob_of
from npurt.llm.decode.sampler import NO_TOKEN, Sampler
from npurt.llm.text.tokenizer import Tokenizer


class Chooser:
    """Samples the tokens that follow a text.

    Args:
        sampler: Chooses one token.
        ends: Ids that end the text.
        top: How many of the likeliest tokens are kept with each; None: no log probabilities.

    Attributes:
        logprobs: Of the tokens of the latest step.
        fits: A function of the history and draft tokens that returns how many of these a grammar
            allows; None: any.
    """

    def __init__(self, sampler: Sampler, ends: Set[int], top: int | None) -> None:
        self.logprobs: list[TokenLogprob] = []
        self.fits = None if sampler.constraint is None else sampler.constraint.fits
        self._sampler = sampler
        self._ends = ends
        self._top = top
        self._failed: BaseException | None = None  # for the next call

    @property
    def ready(self) -> bool:
        """Whether the grammar is ready, if there is one; otherwise a call waits for it."""
        constraint = self._sampler.constraint
        return constraint is None or constraint.ready

    def __call__(self, rows: F32, draft: Sequence[int], history: Sequence[int]) -> list[int]:
        """Sample a token from each row, up to the first that is not the draft's.

        Each token is drawn from the logits of plain decoding, with the same random number.  So
        drafts change nothing but the time.  An error that comes after a token waits for the next
        call, which has the same history: callers get the tokens before it, as without a draft.

        Args:
            rows: Logits ``[1 + draft, V]``.
            draft: Tokens that may follow.
            history: The tokens so far.
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
    """Return how a text ends at *token*: ``"end"``, or ``"stop"`` at an id of the caller."""
    return "end" if token == NO_TOKEN or token in tokenizer.eog else "stop"
