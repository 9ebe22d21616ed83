"""Run speculative decoding of one sequence: draft tokens for each step, and record the results."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from npurt.device.device import F32
from npurt.llm.spec.controller import Controller
from npurt.llm.spec.drafter import Drafter, likeliest

Fits = Callable[[Sequence[int], Sequence[int]], int]


class _Step(NamedTuple):
    """Numbers and times of the latest draft."""

    drawn: int = 0
    seconds: float = 0.0
    behind: int = 0
    read_seconds: float = 0.0


class Speculator:
    """A drafter with the controller that limits the number of draft tokens.

    Args:
        drafter: The source of draft tokens.
        maximum: The largest number of draft tokens in a step.
        fixed: Draft *maximum* tokens at each step without regard to cost; for measurements.
        controller: Limits the number of draft tokens; the default is a controller for a sequence
            that is decoded alone.
    """

    def __init__(
        self, drafter: Drafter, maximum: int, *, fixed: bool = False,
        controller: Controller | None = None,
    ) -> None:  # fmt: skip
        self.drafter = drafter
        self.controller = controller or Controller(
            maximum, fixed=fixed, at_once=drafter.at_once, share=drafter.share
        )
        self._step = _Step()

    def draft(self, history: Sequence[int], maximum: int, fits: Fits | None = None) -> list[int]:
        """Return up to *maximum* draft tokens after *history*.

        The caller must call `observe` after each call.

        Args:
            history: The tokens of prompt and completion so far.
            maximum: The largest number of draft tokens that can be evaluated.
            fits: A function that takes the history and draft tokens, and returns how many draft
                tokens can be accepted, such as those that a grammar allows; None if all can.
        """
        self._step = _Step()
        start = time.perf_counter()
        behind = self.drafter.behind(history)
        wanted = min(maximum, self.controller.choose(behind))
        if wanted <= 0:
            return []
        read = min(behind, self.controller.reading(behind))
        if read:
            self.drafter.prepare(history, read)
        ready = time.perf_counter()
        self._step = _Step(0, 0.0, read, ready - start)
        if read < behind:
            return []
        tokens, drawn = self._draft(history, wanted, fits)
        self._step = _Step(drawn, time.perf_counter() - ready, read, ready - start)
        return tokens

    def observe(self, drafted: int, right: int, seconds: float, row: F32) -> None:
        """Record the result of the step for which `draft` was called.

        Args:
            drafted: The number of verified draft tokens.
            right: The number of accepted draft tokens.
            seconds: The time of verification and sampling.
            row: The logits ``[V]`` after the history.
        """
        if not drafted and self.drafter.share and self.controller.curious:
            self.controller.believe(likeliest(row)[1])
        step = self._step
        self.controller.observe(
            drafted, right, step.seconds, seconds, drawn=step.drawn, behind=step.behind,
            read_seconds=step.read_seconds,
        )  # fmt: skip

    def _draft(
        self, history: Sequence[int], maximum: int, fits: Fits | None
    ) -> tuple[list[int], int]:
        """Return the draft tokens to verify, and the number of tokens that the drafter computed."""
        thresholds, probability = self.controller.thresholds, 1.0
        tokens: list[int] = []
        for token, chance in self.drafter.draft(history, maximum):
            probability *= chance
            tokens.append(token)
            wrong = fits is not None and fits(history, tokens) < len(tokens)
            if wrong or probability < thresholds.verify:
                return tokens[:-1], len(tokens)
            if probability < thresholds.draft:
                break
        return tokens, len(tokens)
