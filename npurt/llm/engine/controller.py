"""Decide how many draft tokens each sequence may have in one step of the engine.

A step that decodes B sequences takes t seconds and yields B tokens.  A draft token with acceptance
probability p yields p more tokens.  It costs the time of one more row and of drafting, for which
all sequences wait.  So a draft token pays if p exceeds B * seconds / t, the number of tokens that
the step yields in the same time without it.  The more sequences are decoded together, the more a
draft token costs, until the controller drafts none.
"""

import math

from npurt.llm.engine.costs import RowCosts
from npurt.llm.spec.assistant import FEW
from npurt.llm.spec.controller import (
    MARGIN,
    PART,
    PRIOR_RIGHT,
    REFRESH,
    USUAL,
    Controller,
    Mean,
    Thresholds,
)
from npurt.llm.spec.drafter import Drafter


class StepCost:
    """The cost of draft tokens in the present step.

    Args:
        costs: The measured costs of runs.

    Attributes:
        costs: As in the arguments.
        rows: Rows of the step so far.
        sequences: The number of sequences that the step decodes.
        second: Tokens per second of the step without drafts, times `MARGIN`.
        row: Seconds of one more row.
        spare: Seconds of the step that drafters may still spend on evaluating prompts.
        draft: Seconds to draft a token.
        read: Seconds in which a drafter evaluates a token of the history.
    """

    def __init__(self, costs: RowCosts) -> None:
        self.costs = costs
        self.draft = Mean(0.0)
        self.read = Mean(0.0)
        self.begin(1)

    def begin(self, sequences: int) -> None:
        """Begin a step that decodes *sequences* sequences."""
        self.rows, self.sequences = 0, sequences
        self.spare = self.costs.seconds(sequences)
        self.add(sequences)

    def add(self, rows: int) -> None:
        """Add *rows* to the step, and update the costs."""
        self.rows += rows
        seconds = self.costs.seconds(self.rows)
        self.second = MARGIN * self.sequences / seconds if seconds else math.inf
        self.row = self.costs.row(self.rows)


class BatchController(Controller):
    """Decides the number of draft tokens of one sequence.

    Args:
        step: The costs of the present step.
        drafter: Drafts tokens of the sequence.
        maximum: The largest number of draft tokens in a step.
        limit: The largest number of tokens to generate; None if unknown.
    """

    def __init__(self, step: StepCost, drafter: Drafter, maximum: int, limit: int | None) -> None:
        super().__init__(maximum, at_once=drafter.at_once, share=drafter.share)
        self._step = step
        self._draft, self._read = step.draft, step.read
        self._limit = USUAL if limit is None else limit
        self._idle = 0  # steps without a draft

    def choose(self, behind: int = 0) -> int:
        """Return the number of tokens to draft, at most.

        *behind* is the number of tokens that the drafter must evaluate first.
        """
        row, draft = self._costs()
        if math.isinf(row):  # no run was measured yet
            return 0
        gain, count, chance, won = 0.0, 0, 1.0, 0.0
        for n in range(1, self._maximum + 1):
            chance *= self._right.value
            won += chance - row - (0.0 if n > 1 and self._at_once else draft)
            if won > gain:
                gain, count = won, n
        if behind:
            rest = max(1, self._limit - self.text.tokens) / (1 + count)  # remaining steps
            if self._step.second * behind * self._reading() > PART * gain * rest:
                return 0
        self._idle = 0 if count else self._idle + 1
        if self._idle >= REFRESH and not behind and row + draft < 1:
            return 1  # test whether drafts pay by now
        return count

    @property
    def thresholds(self) -> Thresholds:
        """The smallest probabilities with which a draft token pays."""
        row, draft = self._costs()
        another = row + (0.0 if self._at_once else draft)
        return Thresholds(min(1.0, another / PRIOR_RIGHT), min(1.0, row))

    def _costs(self) -> tuple[float, float]:
        """Return the cost of a row and of a draft token, or a whole draft, as numbers of tokens.

        The cost of x seconds is the number of tokens that the step yields in x seconds without
        drafts.
        """
        step, draft = self._step, self._draft
        if math.isinf(step.second):
            return math.inf, math.inf
        each = draft.value if draft.known else self._share * step.costs.seconds(1)
        return step.second * step.row, step.second * each

    def reading(self, behind: int) -> int:
        """Return how many of the *behind* tokens the drafter may evaluate in this step.

        The number is limited because the other sequences wait meanwhile.
        """
        each = self._reading()
        if self._step.sequences == 1 or not each:
            return behind
        if self._step.spare <= 0:
            return 0
        count = min(behind, max(FEW, int(self._step.spare / each)))
        self._step.spare -= count * each
        return count

    def _reading(self) -> float:
        """Return the seconds in which the drafter evaluates one token of the history."""
        return self._read.value if self._read.samples else self._share * self._step.row

    def observe(
        self, proposed: int, right: int, draft_seconds: float, verify_seconds: float, *,
        drawn: int | None = None, behind: int = 0, read_seconds: float = 0.0,
    ) -> None:  # fmt: skip
        """Add the result of a step of all sequences; see `Controller.observe`."""
        drawn = proposed if drawn is None else drawn
        if behind:
            self._read.add(read_seconds / behind)
        if drawn:
            self._idle = 0
            self._trials += 1
            self._draft.add(draft_seconds / self._draws(drawn))
        for i in range(min(right + 1, proposed)):
            self._right.add(float(i < right))
        for account in (self.speculation, self.text):
            account.add(proposed, right, read_seconds + draft_seconds + verify_seconds, math.nan)
