"""Speculative decoding of a text: what is drafted for a step, and what came of it."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from npurt.device import F32
from npurt.llm.spec.controller import Controller
from npurt.llm.spec.drafter import Drafter, likeliest

Fits = Callable[[Sequence[int], Sequence[int]], int]


class _Step(NamedTuple):
    """What drafting took: tokens computed and their time, tokens read before and their time."""

    drawn: int = 0
    seconds: float = 0.0
    behind: int = 0
    read_seconds: float = 0.0


class Speculator:
    """A drafter and the controller that decides how far it may go.

    Args:
        drafter: The source of draft tokens.
        most: The most tokens to draft at once.
        fixed: Draft that many at each step, whatever they cost; for measurements.
        controller: Decides how far drafts go; by default one for a text alone.
    """

    def __init__(
        self, drafter: Drafter, most: int, *, fixed: bool = False,
        controller: Controller | None = None,
    ) -> None:  # fmt: skip
        self.drafter = drafter
        self.controller = controller or Controller(
            most, fixed=fixed, at_once=drafter.at_once, share=drafter.share
        )
        self._step = _Step()

    def draft(self, history: Sequence[int], most: int, fits: Fits | None = None) -> list[int]:
        """Return up to *most* tokens that may follow *history*.

        Each call is followed by one of `observe`.

        Args:
            history: Prompt and text so far.
            most: As many can be evaluated.
            fits: A function of the history and draft tokens that returns how many of these may be
                right, such as those that a grammar allows; None: all may.
        """
        self._step = _Step()
        start = time.perf_counter()
        behind = self.drafter.behind(history)
        wanted = min(most, self.controller.choose(behind))
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
        """Record the step whose tokens `draft` returned.

        Args:
            drafted: How many tokens were verified.
            right: How many of them were right.
            seconds: The time of verifying them, with the choice of tokens.
            row: The logits ``[V]`` after the history.
        """
        if not drafted and self.drafter.share and self.controller.curious:
            self.controller.believe(likeliest(row)[1])
        step = self._step
        self.controller.observe(
            drafted, right, step.seconds, seconds, drawn=step.drawn, behind=step.behind,
            read_seconds=step.read_seconds,
        )  # fmt: skip

    def _draft(self, history: Sequence[int], most: int, fits: Fits | None) -> tuple[list[int], int]:
        """Return the draft tokens to verify, and how many the drafter computed."""
        thresholds, probability = self.controller.thresholds, 1.0
        tokens: list[int] = []
        for token, chance in self.drafter.draft(history, most):
            probability *= chance
            tokens.append(token)
            wrong = fits is not None and fits(history, tokens) < len(tokens)
            if wrong or probability < thresholds.verify:
                return tokens[:-1], len(tokens)
            if probability < thresholds.draft:
                break
        return tokens, len(tokens)
