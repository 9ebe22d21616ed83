"""A sampler with functions of the caller: what the libraries in this package offer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, NumericsError, SettingError
from npurt.llm.decode.generate import NO_TOKEN
from npurt.llm.decode.sampler import Sampler, Sampling, greedy
from npurt.runtime.open.arguments import integer

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intc]
Processor = Callable[[Ids, F32], F32]
Criterion = Callable[[Ids, F32], bool]

MOST = float(np.finfo(np.float32).max)  # the largest finite logit


class ProcessedSampler(Sampler):
    """A sampler whose logits are changed by functions first.

    Attributes:
        last: The token that it chose last.
    """

    def __init__(
        self,
        sampling: Sampling,
        never: Iterable[int] = (),
        processors: Sequence[Processor] = (),
        criteria: Sequence[Criterion] = (),
    ) -> None:
        """Prepare.

        Args:
            sampling: The settings, which apply to the changed logits.
            never: Ids that are never chosen.
            processors: Functions of the ids so far, ``[T]``, and the logits ``[V]``, which they may
                overwrite.  They return logits ``[V]``.
            criteria: Functions of the same that say whether the text ends before another token.
        """
        super().__init__(sampling, never)
        self._processors = tuple(processors)
        self._criteria = tuple(criteria)
        self.last = NO_TOKEN

    def sample(self, logits: F32, history: Sequence[int] = ()) -> int:
        """Return the next token, or `NO_TOKEN` to end the text.

        Raises:
            LayoutError: A processor returned no logits ``[V]``.
            NumericsError: A logit is NaN or +inf, or all tokens are excluded.
        """
        if self._criteria or self._processors:
            ids = np.array(history, np.intc)
            if any(criterion(ids, logits.copy()) for criterion in self._criteria):
                return NO_TOKEN
        if self._processors:
            greedy(logits)  # an error here is the model's
            logits = self._processed(ids, logits)
        try:
            self.last = super().sample(logits, history)
        except NumericsError as error:
            if self._processors:
                raise unusable(error.what) from error
            raise
        return self.last

    def _processed(self, ids: Ids, logits: F32) -> F32:
        changed = logits.copy()
        for processor in self._processors:
            changed = returned(processor(ids, changed), logits.shape)
        return changed


def returned(logits: Any, shape: tuple[int, ...]) -> F32:
    """Return the *logits* that a logits processor returned, in float32.

    Raises:
        LayoutError: They are no numbers, or do not have *shape*.
    """
    try:
        with np.errstate(over="ignore"):  # what float32 does not hold is infinite
            changed: F32 = np.asarray(logits, np.float32)
        what = f"shape {changed.shape}, not {shape}"
    except (TypeError, ValueError):
        what = f"{logits!r:.60}"
    else:
        if changed.shape == shape:
            return changed
    raise LayoutError(
        f"a logits processor returned {what}", remedy="return the logits that it got, changed"
    )


def unusable(what: str) -> NumericsError:
    """Return the error that the caller's changes spoil the logits: *what* is wrong with them."""
    return NumericsError(
        f"after the changes by logits_processor, logit_bias and penalties, {what}",
        remedy="leave at least one token with a finite logit, and none with NaN or +inf",
    )


def functions(name: str, given: Any) -> list[Callable[..., Any]]:
    """Return the functions of the argument *name*: none, one, or several of an iterable.

    Raises:
        SettingError: One cannot be called.
    """
    if given is None:
        return []
    members = list(given) if isinstance(given, Iterable) else [given]
    for member in members:
        if not callable(member):
            raise SettingError(
                f"{name} is {given!r:.60}", remedy=f"{name} must be a function, or a list of them"
            )
    return [given] if callable(given) else members


def finite(name: str, value: Any) -> float:
    """Return the number *value* of the argument *name*.

    Raises:
        SettingError: It is no number, or float32 does not hold it.
    """
    number = isinstance(value, Real)
    if not number or not -MOST <= value <= MOST:
        raise SettingError(
            f"{name} is {value!r:.60}", remedy=f"{name} must be a number that float32 holds"
        )
    return float(value)


def checked_biases(biases: Any) -> dict[int, float]:
    """Return the argument logit_bias by id; None: no biases.  An id may be text, as in JSON.

    Raises:
        SettingError: It is no mapping, an id is no integer, or a bias is neither -inf nor finite.
    """
    if biases is None:
        return {}
    if not isinstance(biases, Mapping):
        raise SettingError(
            f"logit_bias is {biases!r:.60}", remedy="pass a dict of token ids and numbers"
        )
    checked: dict[int, float] = {}
    for token, bias in biases.items():
        digits = isinstance(token, str) and token.isdecimal()
        number = integer("a token id of logit_bias", int(token) if digits else token)
        if isinstance(bias, Real) and bias < -MOST:
            checked[number] = -np.inf
        else:
            checked[number] = finite(f"logit_bias of token {number}", bias)
    return checked


def biased(biases: Mapping[int, float]) -> Processor:
    """Return a processor that adds *biases*, by id, to the logits."""

    def add(_: Ids, logits: F32) -> F32:
        for token, bias in biases.items():
            if not 0 <= token < len(logits):
                raise LayoutError(
                    f"the biased token {token} is not one of {len(logits)}",
                    remedy="use ids of the model's tokens",
                )
            logits[token] += bias
        return logits

    return add


def penalised(frequency: float, presence: float, last: int) -> Processor:
    """Return a processor that lowers the logits of the *last* tokens; -1: of all.

    Each loses *frequency* for each time that it is among them, and *presence* once.
    Source: OpenAI, "Frequency and presence penalties": the formula.
    """

    def lower(ids: Ids, logits: F32) -> F32:
        recent = ids if last < 0 else ids[max(0, len(ids) - last) :]
        tokens, counts = np.unique(recent, return_counts=True)
        logits[tokens] -= (counts * frequency + presence).astype(np.float32)
        return logits

    return lower
