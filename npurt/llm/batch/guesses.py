"""Draft tokens of many texts in one step: those that are worth their rows.

A step with B texts takes t seconds and yields B tokens.  A draft token that is right with
probability p yields p tokens more, and costs the seconds of one more row.  It is worth that while
p is more than the tokens that the step yields in this time otherwise: B * row / t.  So drafts cost
more as more texts are decoded together, and cease by themselves.
"""

from collections.abc import Sequence

from npurt.llm.batch.costs import RowCosts
from npurt.llm.spec.controller import BELIEF, MARGIN, PATIENCE, PRIOR_RIGHT, REFRESH, Mean
from npurt.llm.spec.lookup import Lookup


class Guesses:
    """Draft tokens of one text, and how often they were right.

    Attributes:
        drafted: Tokens that were verified.
        accepted: Those that were right.
    """

    def __init__(self) -> None:
        self.drafted = self.accepted = 0
        self._drafter = Lookup()
        self._right = Mean(PRIOR_RIGHT, PATIENCE, BELIEF)  # of one token, if those before are right
        self._idle = 0  # steps without a draft token although there was one

    def propose(self, history: Sequence[int], most: int) -> list[int]:
        """Return up to *most* tokens that may follow."""
        return [token for token, _ in self._drafter.draft(history, most)] if most > 0 else []

    def worth(self, proposed: int, price: float) -> int:
        """Return how many of *proposed* tokens are right often enough for a row's *price*.

        Args:
            price: The least probability that pays for a row.
        """
        chance, count = 1.0, 0
        while count < proposed:
            chance *= self._right.value
            if chance < price:
                break
            count += 1
        self._idle = 0 if count or not proposed else self._idle + 1
        if self._idle >= REFRESH and price < 1:
            self._idle = 0
            return 1  # the text may have changed
        return count

    def observe(self, proposed: int, right: int) -> None:
        """Record that *right* of *proposed* draft tokens were right."""
        self.drafted += proposed
        self.accepted += right
        for i in range(min(right + 1, proposed)):
            self._right.add(float(i < right))


def price(costs: RowCosts, rows: int, texts: int) -> float:
    """Return the least probability that pays for one row more.

    Args:
        rows: Rows of the step so far.
        texts: How many texts the step decodes.
    """
    seconds = costs.seconds(rows)
    return MARGIN * texts * costs.row(rows) / seconds if seconds else 1.0
