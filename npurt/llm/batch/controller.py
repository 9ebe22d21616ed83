"""How many tokens the drafts of many texts may have in one step: as many as pay for their rows.

A step with B texts takes t seconds and yields B tokens.  A draft token that is right with
probability p yields p tokens more.  It costs the seconds of one more row and of drafting it, during
which all texts wait.  So it pays while p is more than the tokens that the step otherwise yields in
these seconds: B * seconds / t.  So drafts cost more as more texts are decoded together, and cease
by themselves.
"""

import math

from npurt.llm.batch.costs import RowCosts
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
    """What draft tokens of the present step cost.

    Args:
        costs: Of runs, measured.

    Attributes:
        costs: As given.
        rows: Rows of the step so far.
        texts: How many texts it decodes.
        second: Tokens that the step yields in a second without drafts, times `MARGIN`.
        row: Seconds of one more row.
        spare: Seconds that drafts may take to read prompts.
        draft, read: Seconds that drafting a token takes, and reading one before.
    """

    def __init__(self, costs: RowCosts) -> None:
        self.costs = costs
        self.draft = Mean(0.0)
        self.read = Mean(0.0)
        self.begin(1)

    def begin(self, texts: int) -> None:
        """Begin a step that decodes so many texts."""
        self.rows, self.texts = 0, texts
        self.spare = self.costs.seconds(texts)
        self.add(texts)

    def add(self, rows: int) -> None:
        """Add rows to the step."""
        self.rows += rows
        seconds = self.costs.seconds(self.rows)
        self.second = MARGIN * self.texts / seconds if seconds else math.inf
        self.row = self.costs.row(self.rows)


class BatchController(Controller):
    """Decides how far the drafts of one text may go.

    Args:
        step: Costs of the present step.
        drafter: Drafts for the text.
        most: The most tokens to draft at once.
        limit: The most tokens that the text will have; None: unknown.
    """

    def __init__(self, step: StepCost, drafter: Drafter, most: int, limit: int | None) -> None:
        super().__init__(most, at_once=drafter.at_once, share=drafter.share)
        self._step = step
        self._draft, self._read = step.draft, step.read
        self._limit = USUAL if limit is None else limit
        self._idle = 0  # steps without a draft

    def choose(self, behind: int = 0) -> int:
        """Return the most tokens to draft, by a drafter that has to read *behind* tokens first."""
        row, draft = self._costs()
        if math.isinf(row):  # nothing was measured
            return 0
        gain, count, chance, won = 0.0, 0, 1.0, 0.0
        for n in range(1, self._most + 1):
            chance *= self._right.value
            won += chance - row - (0.0 if n > 1 and self._at_once else draft)
            if won > gain:
                gain, count = won, n
        if behind:
            rest = max(1, self._limit - self.text.tokens) / (1 + count)  # steps
            if self._step.second * behind * self._reading() > PART * gain * rest:
                return 0
        self._idle = 0 if count else self._idle + 1
        if self._idle >= REFRESH and not behind and row + draft < 1:
            return 1  # the text may have changed
        return count

    @property
    def thresholds(self) -> Thresholds:
        """The probabilities from which on a draft token pays."""
        row, draft = self._costs()
        another = row + (0.0 if self._at_once else draft)
        return Thresholds(min(1.0, another / PRIOR_RIGHT), min(1.0, row))

    def _costs(self) -> tuple[float, float]:
        """Return how many tokens a row costs, and drafting a token or all at once."""
        step, draft = self._step, self._draft
        if math.isinf(step.second):
            return math.inf, math.inf
        each = draft.value if draft.known else self._share * step.costs.seconds(1)
        return step.second * step.row, step.second * each

    def reading(self, behind: int) -> int:
        """Return how many of the *behind* tokens the drafter may read now: others wait."""
        each = self._reading()
        if self._step.texts == 1 or not each:
            return behind
        if self._step.spare <= 0:
            return 0
        count = min(behind, max(FEW, int(self._step.spare / each)))
        self._step.spare -= count * each
        return count

    def _reading(self) -> float:
        """Return the seconds that the drafter takes to read a token."""
        return self._read.value if self._read.samples else self._share * self._step.row

    def observe(
        self, proposed: int, right: int, draft_seconds: float, verify_seconds: float, *,
        drawn: int | None = None, behind: int = 0, read_seconds: float = 0.0,
    ) -> None:  # fmt: skip
        """Add a step: see `Controller.observe`; the step was one of all texts."""
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
