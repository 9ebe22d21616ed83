"""Choose the next token from logits with the samplers of `samplers.chain`.

V is the number of logits and C the number of candidates.  Candidates are sorted by descending
logit; candidates with equal logits are sorted by id.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from npurt.errors import GrammarError, LayoutError, NumericsError
from npurt.llm.decode.grammar.constraint import Constraint, Mask
from npurt.llm.decode.samplers.candidates import (
    F32,
    F64,
    Candidates,
    Ids,
    Logits,
    Tails,
    Text,
    best_of,
    check_ids,
)
from npurt.llm.decode.samplers.chain import changes, filters
from npurt.llm.decode.samplers.draw import Draws
from npurt.llm.decode.samplers.drawn_in_c import drawn_in_c
from npurt.llm.decode.samplers.results import returned, says_end, unusable
from npurt.llm.decode.samplers.settings import Sampling as Sampling

NO_TOKEN = -1  # the return value of a sampler that ends the sequence

Processor = Callable[[npt.NDArray[np.intc], F32], F32]
Criterion = Callable[[npt.NDArray[np.intc], F32], bool]


class TokenSampler:
    """Samples the tokens of one sequence, one token a call.

    The random numbers for a token depend only on the seed and on the number of tokens before it.

    Args:
        sampling: The sampling settings.  They apply to the logits that *processors* return.
        never: Ids that are never sampled.
        processors: Functions that take the ids so far, ``[T]``, and the logits, ``[V]``, and return
            changed logits ``[V]``.  They may overwrite their argument.
        criteria: Functions that take the same arguments as *processors*, and return whether the
            sequence ends before the next token.
        breakers: The sequence breakers of DRY; see `Text`.
        ends: Ids that are not sampled while prompt and completion have fewer than *begins* tokens.
        begins: The number of tokens from which *ends* may be sampled.
        constraint: Restricts the tokens to those that a grammar allows; None allows all tokens.
    """

    def __init__(
        self,
        sampling: Sampling,
        never: Iterable[int] = (),
        *,
        processors: Sequence[Processor] = (),
        criteria: Sequence[Criterion] = (),
        breakers: Mapping[int, Tails] | None = None,
        ends: Iterable[int] = (),
        begins: int = 0,
        constraint: Constraint | None = None,
    ) -> None:
        self.sampling = sampling
        self.processors = tuple(processors)
        self.criteria = tuple(criteria)
        self._changes, self._filters = changes(sampling), filters(sampling)
        self._breakers = breakers or {}
        self._never = _sorted(never)
        self._early = _sorted({*self._never.tolist(), *ends})  # excluded before *begins* tokens
        self._begins = begins
        self.constraint = constraint
        self._draws = Draws(secrets.randbits(64) if sampling.seed is None else sampling.seed)
        plain = not (self._changes or self.processors or constraint)
        self._in_c = drawn_in_c(sampling, self._never) if plain else None
        self._row = np.zeros(0, np.float32)  # [V], reused for each token

    def sample(self, logits: F32, history: Sequence[int] = ()) -> int:
        """Return the next token, or `NO_TOKEN` to end the sequence.

        Args:
            logits: float32 ``[V]``; not modified.  A logit of -inf excludes its token.
            history: The tokens of the sequence so far.

        Raises:
            LayoutError: *logits* is not one row, *history* has an id that is not in 0..V-1, or a
                processor returned no logits ``[V]``.
            GrammarError: The grammar allows no next token.
            NumericsError: A logit is NaN or +inf, or all tokens are excluded.
        """
        if self.criteria and any(
            says_end(each, _array(history), logits.copy()) for each in self.criteria
        ):
            return NO_TOKEN
        allowed = None
        if self.constraint is not None:
            allowed = self.constraint.allowed(history)
            if allowed is None:  # the grammar accepts the completion, and allows no more tokens
                return NO_TOKEN
        if self.sampling.temperature == 0 and not (self._changes or self.processors):
            token = greedy(logits)
            held = allowed is None or (token < len(allowed) and allowed[token])
            if held and token not in self._barred(history):
                return token
        draw, chance = self._draws(len(history))
        if self._in_c and len(history) >= self._begins:
            _check_row(logits)
            found = self._in_c(logits, draw)
            if found is not None:
                return found
        ids, probabilities = self._distribution(logits, history, chance, allowed)
        bounds = np.cumsum(probabilities)
        drawn = np.searchsorted(bounds, draw * bounds[-1], side="right")
        return int(ids[min(int(drawn), len(ids) - 1)])

    def distribution(self, logits: F32, history: Sequence[int] = ()) -> tuple[Ids, F64]:
        """Return the ids ``[C]`` of the candidates and their probabilities ``[C]``.

        Raises the errors of `sample`.
        """
        allowed = None if self.constraint is None else self.constraint.allowed(history)
        return self._distribution(logits, history, self._draws(len(history))[1], allowed)

    def adjusted(self, logits: F32, history: Sequence[int] = ()) -> Logits:
        """Return *logits* after processors, biases and penalties."""
        return self._adjusted(logits, Text(history, breakers=self._breakers)).copy()

    def _distribution(
        self, logits: F32, history: Sequence[int], chance: float, allowed: Mask | None
    ) -> tuple[Ids, F64]:
        text = Text(history, chance, self._breakers)
        candidates = Candidates(self._adjusted(logits, text, allowed))
        try:
            best_of(candidates.logits)
        except NumericsError as error:
            greedy(logits)  # raises if the model's own logits are wrong
            if allowed is not None and candidates.logits.max() == -np.inf:
                raise GrammarError(
                    f"the grammar allows {np.count_nonzero(allowed)} tokens here, and other "
                    "options excluded all of them",
                    remedy="leave out logit_bias, logits_processor and min_tokens",
                ) from error
            if not (self._changes or self.processors):
                raise
            raise unusable(error.what) from error
        for step in self._filters:
            candidates = step(candidates, text)
        return candidates.best_first(), candidates.probabilities()

    def _adjusted(self, logits: F32, text: Text, allowed: Mask | None = None) -> Logits:
        _check_row(logits)
        if self.processors:
            greedy(logits)  # raises if the model's own logits are wrong
            logits = self._processed(logits, text.history)
        excluded = self._barred(text.history)
        check_ids("the list of tokens that must not be sampled", excluded, len(logits))
        if len(excluded) or allowed is not None:
            logits = self._without(logits, excluded, allowed)
        candidates = Candidates(logits)
        for step in self._changes:
            candidates = step(candidates, text)
        return candidates.logits

    def _without(self, logits: F32, excluded: Ids, allowed: Mask | None) -> F32:
        """Return *logits* with -inf for tokens that are in *excluded* or not in *allowed*.

        The result is a buffer that the next call overwrites.
        """
        if self._row.shape != logits.shape:
            self._row = np.empty_like(logits)
        np.copyto(self._row, logits)
        self._row[excluded] = -np.inf
        if allowed is not None:
            np.copyto(self._row[: len(allowed)], -np.inf, where=~allowed)
            self._row[len(allowed) :] = -np.inf  # logits beyond the vocabulary, due to padding
        return self._row

    def _barred(self, history: Sequence[int]) -> Ids:
        return self._early if len(history) < self._begins else self._never

    def _processed(self, logits: F32, history: Sequence[int]) -> F32:
        ids, changed = _array(history), logits.copy()
        for processor in self.processors:
            changed = returned(processor(ids, changed), logits.shape)
        return changed


def distribution(logits: F32, history: Sequence[int], sampling: Sampling) -> tuple[Ids, F64]:
    """Return the ids ``[C]`` of the candidates and their probabilities ``[C]`` with *sampling*.

    Raises the errors of `TokenSampler.sample`.
    """
    return TokenSampler(sampling).distribution(logits, history)


def greedy(logits: F32) -> int:
    """Return the token with the largest logit; of several such tokens, the first.

    Raises the errors of `TokenSampler.sample`.
    """
    _check_row(logits)
    return best_of(logits)


def _check_row(logits: F32) -> None:
    if logits.ndim != 1 or logits.dtype != np.float32 or not len(logits):
        raise LayoutError(
            f"logits are {logits.dtype} {logits.shape}, not float32 [V]",
            remedy="pass one row of the model's logits",
        )


def _array(history: Sequence[int]) -> npt.NDArray[np.intc]:
    return np.fromiter(history, np.intc, len(history))


def _sorted(ids: Iterable[int]) -> Ids:
    return np.array(sorted(set(ids)), np.int64)
