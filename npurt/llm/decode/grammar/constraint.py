"""Compute which next tokens a grammar allows in one sequence."""

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

SECONDS = 10.0  # timeout for parsing a grammar; within the size limits it takes less than 1 s

Mask = npt.NDArray[np.bool_]


class Constraint:
    """Computes the allowed next tokens of one sequence.

    The result depends only on the history.  So it does not change if the sequence was preempted, if
    draft tokens were rejected, or if tokens are evaluated again.  One thread at a time may use a
    constraint.  A background thread builds the parser: see `ready`.

    Args:
        grammar: The grammar of the completion.
        tokenizer: The model's tokenizer.
        begins: The number of prompt tokens.

    Raises:
        GrammarError: The grammar names a token that the tokenizer lacks.
    """

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer, begins: int) -> None:
        self._grammar = grammar
        self._lark = grammar.lark_for(tokenizer)
        self._n_vocab = tokenizer.n_vocab
        self._ends = sorted(tokenizer.eog)
        self._begins = begins
        self._consumed: list[int] = []  # the tokens that the matcher has consumed
        self._vocabulary = vocabulary_of(tokenizer)
        self._matcher: Background[Any] = Background(self._new_matcher, "npurt grammar")

    @property
    def ready(self) -> bool:
        """Whether `allowed` returns without waiting for the background thread."""
        return self._matcher.done()

    def allowed(self, history: Sequence[int]) -> Mask | None:
        """Return a mask ``[V]`` of the allowed next tokens.

        If the grammar accepts the completion so far, the mask includes end tokens.  If it also
        allows no other token, the result is None.

        Raises:
            GrammarError: The grammar allows no next token, does not match the tokens in *history*,
                or takes too long to parse.
        """
        with no_panic(self._grammar.kind):
            return self._allowed(history)

    def _allowed(self, history: Sequence[int]) -> Mask | None:
        matcher = self._advanced(history)
        if matcher.is_stopped() and not matcher.is_error():
            return None
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        self._check(matcher)
        mask = np.unpackbits(bits, bitorder="little")[: self._n_vocab].view(np.bool_)
        if not mask.any() and not matcher.is_accepting():
            raise dead_end(self._grammar.kind, len(self._consumed))
        if matcher.is_accepting():
            further = mask.copy()
            further[self._ends] = False
            if not further.any():
                return None
        return mask

    def fits(self, history: Sequence[int], draft: Sequence[int]) -> int:
        """Return the length of the longest prefix of *draft* that is allowed after *history*."""
        with no_panic(self._grammar.kind):
            count: int = self._advanced(history).validate_tokens(list(draft))
        return count

    def _advanced(self, history: Sequence[int]) -> Any:
        """Return the matcher after it has consumed the completion tokens of *history*."""
        matcher = self._result()
        tokens = list(history[self._begins :])
        same = 0
        if tokens[: len(self._consumed)] == self._consumed:
            same = len(self._consumed)
        else:
            while (
                same < min(len(tokens), len(self._consumed))
                and tokens[same] == self._consumed[same]
            ):
                same += 1
        if same < len(self._consumed):
            matcher.rollback(len(self._consumed) - same)
        matcher.consume_tokens(tokens[same:])
        self._consumed = tokens
        self._check(matcher)
        return matcher

    def _result(self) -> Any:
        self._vocabulary.result()
        try:
            matcher = self._matcher.result(SECONDS)
        except TimeoutError:
            raise GrammarError(
                f"the {self._grammar.kind} is not ready after {SECONDS:.0f} s",
                remedy="use a smaller grammar",
            ) from None
        self._check(matcher)
        return matcher

    def _new_matcher(self) -> Any:
        return llguidance().LLMatcher(
            self._vocabulary.result(), self._lark, log_level=0, limits=limits()
        )

    def _check(self, matcher: Any) -> None:
        check(matcher, self._grammar.kind, len(self._consumed))
