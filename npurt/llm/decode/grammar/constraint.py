"""Which tokens may come next in a text, so that the whole will be in a grammar."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import GrammarError
from npurt.llm.decode.grammar.grammar import Grammar
from npurt.llm.decode.grammar.library import check, dead_end, limits, llguidance, no_panic
from npurt.llm.decode.grammar.vocabulary import vocabulary_of
from npurt.llm.session.background import Background
from npurt.llm.text.tokenizer import Tokenizer

SECONDS = 10.0  # for a grammar; those within the limits take less than one

Mask = npt.NDArray[np.bool_]


class Constraint:
    """Which tokens may come next in one text.

    The answer depends on the history alone.  So it is the same for a text that is continued later,
    after a wrong draft, and for tokens that are evaluated again.  One thread at a time may use it.

    Args:
        grammar: What the text must be.
        tokenizer: The model's.  Parsers are built in a thread: see `ready`.
        begins: The number of tokens before the text, those of the prompt.
    """

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer, begins: int) -> None:
        self._grammar = grammar
        self._n_vocab = tokenizer.n_vocab
        self._ends = sorted(tokenizer.eog)
        self._begins = begins
        self._text: list[int] = []  # what the matcher has read
        self._vocabulary = vocabulary_of(tokenizer)
        self._matcher: Background[Any] = Background(self._new_matcher, "npurt grammar")

    @property
    def ready(self) -> bool:
        """Whether `allowed` returns without waiting for the thread."""
        return self._matcher.done()

    def allowed(self, history: Sequence[int]) -> Mask | None:
        """Return which tokens ``[V]`` may follow *history*; None: the text is complete.

        End tokens may follow a text that is complete but could go on.

        Raises:
            GrammarError: Nothing may follow, the text in *history* is not of the grammar, or the
                grammar needs too much time.
        """
        with no_panic(self._grammar.kind):
            return self._allowed(history)

    def _allowed(self, history: Sequence[int]) -> Mask | None:
        matcher = self._read(history)
        if matcher.is_stopped() and not matcher.is_error():
            return None
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        self._check(matcher)
        mask = np.unpackbits(bits, bitorder="little")[: self._n_vocab].view(np.bool_)
        if not mask.any() and not matcher.is_accepting():
            raise dead_end(self._grammar.kind, len(self._text))
        if matcher.is_accepting():
            further = mask.copy()
            further[self._ends] = False
            if not further.any():
                return None
        return mask

    def fits(self, history: Sequence[int], draft: Sequence[int]) -> int:
        """Return how many tokens of *draft* may follow *history*, one after another."""
        with no_panic(self._grammar.kind):
            count: int = self._read(history).validate_tokens(list(draft))
        return count

    def _read(self, history: Sequence[int]) -> Any:
        """Return the matcher after it has read the text in *history*."""
        matcher = self._result()
        text = list(history[self._begins :])
        same = 0
        if text[: len(self._text)] == self._text:
            same = len(self._text)
        else:
            while same < min(len(text), len(self._text)) and text[same] == self._text[same]:
                same += 1
        if same < len(self._text):
            matcher.rollback(len(self._text) - same)
        matcher.consume_tokens(text[same:])
        self._text = text
        self._check(matcher)
        return matcher

    def _result(self) -> Any:
        self._vocabulary.result()
        try:
            matcher = self._matcher.result(SECONDS)
        except TimeoutError:
            raise GrammarError(
                f"the {self._grammar.kind} is not ready after {SECONDS:.0f} s",
                remedy="use a smaller one",
            ) from None
        self._check(matcher)
        return matcher

    def _new_matcher(self) -> Any:
        return llguidance().LLMatcher(
            self._vocabulary.result(), self._grammar.lark, log_level=0, limits=limits()
        )

    def _check(self, matcher: Any) -> None:
        check(matcher, self._grammar.kind, len(self._text))
