"""Choose the next token from logits, by the samplers of `samplers.chain`.

V is the number of logits.  C is the number of remaining candidates, which are sorted best first,
and by id if they are equal.
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
from npurt.llm.decode.samplers.results import returned, says_end, unusable
from npurt.llm.decode.samplers.settings import Sampling as Sampling

NO_TOKEN = -1  # what a sampler returns to end a text

Processor = Callable[[npt.NDArray[np.intc], F32], F32]
Criterion = Callable[[npt.NDArray[np.intc], F32], bool]


class Sampler:
    """Chooses tokens one after another.

    The random numbers of a token depend on the seed and on the number of tokens before it.

    Args:
        sampling: The settings, which apply to the logits that *processors* return.
        never: Ids that are never chosen.
        processors: Functions of the ids so far, ``[T]``, and the logits ``[V]``, which they may
            overwrite.  They return logits ``[V]``.
        criteria: Functions of the same that say whether the text ends before another token.
        breakers: Of DRY; see `Text`.
        ends: Ids that are not chosen before the text has *begins* tokens, with the prompt.
        begins: See *ends*.
        constraint: Which tokens keep the text in a grammar; None: all do.
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
        self._early = _sorted({*self._never.tolist(), *ends})  # never, or not yet
        self._begins = begins
        self.constraint = constraint
        self._draws = Draws(secrets.randbits(64) if sampling.seed is None else sampling.seed)
        self._row = np.zeros(0, np.float32)  # [V], reused for each token

    def sample(self, logits: F32, history: Sequence[int] = ()) -> int:
        """Return the next token, or `NO_TOKEN` to end the text.

        Args:
            logits: float32 ``[V]``, which stay unchanged.  -inf excludes a token.
            history: The tokens before it.

        Raises:
            LayoutError: *logits* is not one row, *history* has an id that is not in 0..V-1, or a
                processor returned no logits ``[V]``.
            GrammarError: The grammar lets no token follow.
            NumericsError: A logit is NaN or +inf, or all tokens are excluded.
        """
        if self.criteria and any(
            says_end(each, _array(history), logits.copy()) for each in self.criteria
        ):
            return NO_TOKEN
        allowed = None
        if self.constraint is not None:
            allowed = self.constraint.allowed(history)
            if allowed is None:  # the text is complete
                return NO_TOKEN
        if self.sampling.temperature == 0 and not (self._changes or self.processors):
            token = greedy(logits)
            if token not in self._barred(history) and _holds(allowed, token):
                return token
        draw, chance = self._draws(len(history))
        ids, probabilities = self._distribution(logits, history, chance, allowed)
        bounds = np.cumsum(probabilities)
        drawn = np.searchsorted(bounds, draw * bounds[-1], side="right")
        return int(ids[min(int(drawn), len(ids) - 1)])

    def distribution(self, logits: F32, history: Sequence[int] = ()) -> tuple[Ids, F64]:
        """Return the candidates, ids ``[C]``, and their probabilities ``[C]``; see `sample`."""
        allowed = None if self.constraint is None else self.constraint.allowed(history)
        return self._distribution(logits, history, self._draws(len(history))[1], allowed)

    def adjusted(self, logits: F32, history: Sequence[int] = ()) -> Logits:
        """Return *logits* as processors, biases and penalties leave them."""
        return self._adjusted(logits, Text(history, breakers=self._breakers)).copy()

    def _distribution(
        self, logits: F32, history: Sequence[int], chance: float, allowed: Mask | None
    ) -> tuple[Ids, F64]:
        text = Text(history, chance, self._breakers)
        candidates = Candidates(self._adjusted(logits, text, allowed))
        try:
            best_of(candidates.logits)
        except NumericsError as error:
            greedy(logits)  # an error here is the model's
            if allowed is not None and candidates.logits.max() == -np.inf:
                raise GrammarError(
                    f"the grammar allows {np.count_nonzero(allowed)} tokens here, which are all "
                    "excluded otherwise",
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
            greedy(logits)  # an error here is the model's
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
        """Return *logits* with -inf for *excluded* and all not *allowed*, until the next call."""
        if self._row.shape != logits.shape:
            self._row = np.empty_like(logits)
        np.copyto(self._row, logits)
        self._row[excluded] = -np.inf
        if allowed is not None:
            np.copyto(self._row[: len(allowed)], -np.inf, where=~allowed)
            self._row[len(allowed) :] = -np.inf  # rows of the model without a token
        return self._row

    def _barred(self, history: Sequence[int]) -> Ids:
        return self._early if len(history) < self._begins else self._never

    def _processed(self, logits: F32, history: Sequence[int]) -> F32:
        ids, changed = _array(history), logits.copy()
        for processor in self.processors:
            changed = returned(processor(ids, changed), logits.shape)
        return changed


def distribution(logits: F32, history: Sequence[int], sampling: Sampling) -> tuple[Ids, F64]:
    """Return the candidates, ids ``[C]``, and their probabilities ``[C]``, as *sampling* says.

    Errors as `Sampler.sample`.
    """
    return Sampler(sampling).distribution(logits, history)


def greedy(logits: F32) -> int:
    """Return the best token, the first of equal ones.  Errors as `Sampler.sample`."""
    _check_row(logits)
    return best_of(logits)


def _check_row(logits: F32) -> None:
    if logits.ndim != 1 or logits.dtype != np.float32 or not len(logits):
        raise LayoutError(
            f"logits are {logits.dtype} {logits.shape}, not float32 [V]",
            remedy="pass one row of the model's logits",
        )


def _holds(allowed: Mask | None, token: int) -> bool:
    return allowed is None or (token < len(allowed) and bool(allowed[token]))


def _array(history: Sequence[int]) -> npt.NDArray[np.intc]:
    return np.fromiter(history, np.intc, len(history))


def _sorted(ids: Iterable[int]) -> Ids:
    return np.array(sorted(set(ids)), np.int64)
