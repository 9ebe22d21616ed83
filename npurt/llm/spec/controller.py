"""How many tokens to draft: as many as pay, measured while it runs, and none where none does.

With n drafted tokens a step yields ``1 + a + a^2 + ... + a^n`` tokens, a being how often a guess is
right when those before it were, and takes the time to draft n and to verify n + 1 rows.  The
controller keeps running means of all three and takes the n with the most tokens per second.

It cannot know what it has not tried, so it tries, and its losses are limited: what drafting has
cost over plain decoding of the same tokens, and was not won back since, stays below `ALLOWANCE` of
the text's time.  Of the whole text's, when it is known how long that will be; but of `USUAL` tokens
at least for the first trials in a process, whose lesson is not for one text alone.

A draft model has to read the text before it guesses.  That is paid from the same allowance, or
where a part of what can be won in the rest of the text pays for it.  What can be won is known
before anything was read: a guess is right about as often as the model is sure of its tokens.
"""

import math
from dataclasses import dataclass

from npurt.llm.spec.speculation import Speculation

ALLOWANCE = 0.025  # of a text's time, lost at most
AGAIN = 0.015  # of the time it took so far, lost to what seems not to pay
MEMORY = 0.85  # weight of the past in a running mean of times
PATIENCE = 0.95  # in that of right and wrong guesses, which are all or nothing
PRIOR_ROW = 0.1  # of a plain step: what another row of verification costs, before it is measured
FREE = 0.01  # of a plain step: a draft that takes less costs nothing
MARGIN = 1.05  # of plain decoding's rate, to be expected of a draft that is made
WARM_UP = 3  # plain steps before anything is tried
TRIALS = 2  # drafts of one token at the beginning: the first measurement is not relied on
COLD = 2  # times as long takes what was never run
USUAL = 128  # tokens of a text of which nobody knows how long it will be
PART = 1 / 3  # of what can be won, for reading the text
REFRESH = 48  # steps after which a plain one is measured again


@dataclass(slots=True)
class Mean:
    """A mean of all samples, as long as they are few; later one that forgets."""

    value: float
    memory: float = MEMORY
    samples: int = 0

    @property
    def known(self) -> bool:
        """Whether it can be relied on: what is done for the first time is slow."""
        return self.samples > 1

    def add(self, sample: float) -> None:
        """Take in one sample; the first replaces the prior, and a smaller second the first."""
        begins = self.samples == 0 or (self.samples == 1 and sample < self.value)
        weight = 0.0 if begins else min(self.memory, self.samples / (self.samples + 1))
        self.value = weight * self.value + (1 - weight) * sample
        self.samples += 1


class Controller:
    """Chooses the number of drafted tokens of each step.

    Args:
        most: Largest number.
        fixed: Always draft *most*, whatever it costs: for measurements.
        at_once: Drafting several tokens takes as long as drafting one.
        share: What drafting costs, before it is measured, of what the model itself takes.

    Attributes:
        speculation: The account of all texts.
        text: That of the present one.
    """

    def __init__(
        self, most: int, *, fixed: bool = False, at_once: bool = False, share: float = 0.0
    ) -> None:
        self.speculation = Speculation()
        self.text = Speculation()
        self._most = most
        self._fixed = fixed
        self._at_once = at_once
        self._share = share
        self._right = Mean(0.7, PATIENCE, samples=4)  # a guess, when those before it are
        self._verify = [Mean(0.0) for _ in range(most + 1)]  # seconds, by drafted tokens
        self._draft = Mean(0.0)  # seconds per drafted token, or per draft
        self._read = Mean(0.0)  # seconds per token that a drafter reads
        self._since_plain = 0
        self._trials = 0
        self._expected: int | None = None
        self._lost = 0.0  # seconds, over plain decoding, that no later step has won back

    def begin(self, expected: int | None, reading: float = 0.0) -> Speculation:
        """Begin another text; return its account.

        Args:
            expected: Tokens it will have, unless the model ends it before; None: nobody knows.
            reading: Seconds that the model took for a token of the prompt.
        """
        self.text = Speculation()
        self._expected = expected
        self._lost = 0.0
        if not self._read.samples:
            self._read.value = self._share * reading
        return self.text

    @property
    def curious(self) -> bool:
        """Whether to tell how sure the model is: every second time, until a guess was judged."""
        return self._trials == 0 and self.text.passes % 2 == 0 and not self._fixed

    def believe(self, certainty: float) -> None:
        """Take in how sure the model was of a token: about as often is a good guess right."""
        self._right.add(certainty)

    def choose(self, behind: int = 0) -> int:
        """Return how many tokens to draft now, by a drafter that has *behind* tokens to read."""
        if self._fixed:
            return self._most
        plain = self._verify[0]
        if self.speculation.passes < WARM_UP or self._since_plain >= REFRESH or not plain.known:
            return 0
        spent, tried = self.text.seconds, self._trials >= TRIALS
        lost = self._lost + self._owed(behind)
        left = ALLOWANCE * (spent + self._to_come() * plain.value) - lost
        if self._cost(1) > left:
            return 0
        best = max(range(1, self._most + 1 if tried else 2), key=lambda n: self._rate(n, left))
        if self._rate(best, left) > (MARGIN * self._rate(0) if tried else 0):
            return best
        return 1 if lost + self._cost(1) <= AGAIN * spent else 0

    def observe(
        self,
        proposed: int,
        right: int,
        draft_seconds: float,
        verify_seconds: float,
        *,
        wanted: int | None = None,
        behind: int = 0,
        read_seconds: float = 0.0,
    ) -> None:
        """Take in one step: *right* of *proposed* tokens were accepted, *wanted* asked for.

        A draft that gives up has spent the time of one token more, and counts as a wrong guess;
        unless it spent next to nothing, as a lookup does.  Before it, *behind* tokens were read.
        """
        wanted = proposed if wanted is None else wanted
        owed = read_seconds if self._owed(behind) else 0.0
        plain = self._verify[0]
        self._verify[proposed].add(verify_seconds)
        gave_up = proposed < wanted and draft_seconds > FREE * plain.value
        if behind:
            self._read.add(read_seconds / behind)
        if proposed or gave_up:
            self._trials += 1
            self._draft.add(draft_seconds / self._shares(proposed + gave_up))
            for i in range(min(right + 1, proposed + gave_up)):
                self._right.add(float(i < right))
        self._since_plain = self._since_plain + 1 if proposed else 0
        each = plain.value if plain.known else math.nan
        without = (right + 1) * each if proposed else verify_seconds
        seconds = draft_seconds + verify_seconds
        self._lost = max(0.0, self._lost + owed + seconds - without)
        for account in (self.speculation, self.text):
            account.add(proposed, right, read_seconds + seconds, without)

    def _to_come(self) -> int:
        """Return how many tokens the text will still have, as far as trying is worth it.

        What the first trials teach is of use to the texts that follow, however short this one is.
        """
        done = self.text.tokens
        if self._expected is None:
            return max(USUAL - done, done)
        return (max(self._expected, USUAL) if self._trials < TRIALS else self._expected) - done

    def _owed(self, behind: int) -> float:
        """Return the seconds of reading *behind* tokens, if not what can be won pays for them."""
        if not behind or not self._verify[0].known:
            return 0.0
        gain = 1 - self._rate(0) / max(self._rate(n) for n in range(self._most + 1))
        win = gain * self._to_come() * self._verify[0].value
        reading = behind * self._read.value
        return reading if reading > PART * win else 0.0

    def _cost(self, n: int) -> float:
        """Return the seconds that are lost if *n* are drafted and none is right."""
        verify = self._verifying(n) * (1 if self._verify[n].samples else COLD)
        draft = self._drafting(n) * (1 if self._draft.samples else COLD)
        return draft + verify - self._verify[0].value

    def _rate(self, n: int, left: float = math.inf) -> float:
        """Return the tokens per second to expect with *n* drafted; 0 if that may cost too much."""
        if self._cost(n) > left:
            return 0.0
        tokens = sum(self._right.value**i for i in range(n + 1))
        return tokens / (self._verifying(n) + self._drafting(n))

    def _drafting(self, n: int) -> float:
        """Return the seconds that *n* tokens take to draft."""
        each = self._draft.value if self._draft.samples else self._share * self._verify[0].value
        return self._shares(n) * each

    def _verifying(self, n: int) -> float:
        """Return the seconds that a pass checking *n* takes, from those near it if need be."""
        plain = self._verify[0].value
        known = [i for i in range(self._most + 1) if self._verify[i].known]
        below = max((i for i in known if i <= n), default=0)
        above = min((i for i in known if i >= n), default=None)
        if above is None or above == below:
            return self._verify[below].value + (n - below) * PRIOR_ROW * plain
        low, high = self._verify[below].value, self._verify[above].value
        return low + (high - low) * (n - below) / (above - below)

    def _shares(self, n: int) -> int:
        """Return how many times `_draft` the drafting of *n* tokens takes."""
        return min(n, 1) if self._at_once else n
