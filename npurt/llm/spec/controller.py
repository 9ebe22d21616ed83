"""How many tokens to draft: as many as pay, measured while it runs, and none where none does.

With n drafted tokens a step yields ``1 + a + a^2 + ... + a^n`` tokens, a being how often a guess is
right when those before it were, and takes the time to draft n and to verify n + 1 rows.  The
controller keeps running means of all three and takes the n with the most tokens per second.

It cannot know what it has not tried, so it tries: twice at the beginning, as what runs for the
first time is slow, then within a budget: what speculation has cost so far, over plain decoding of
the same tokens, must stay below `ALLOWANCE` of all time spent.
"""

from dataclasses import dataclass

ALLOWANCE = 0.015  # of the time, lost to trying
MEMORY = 0.85  # weight of the past in a running mean of times
PATIENCE = 0.95  # in that of right and wrong guesses, which are all or nothing
PRIOR_ROW = 0.1  # of a plain step: what another row of verification costs, before it is measured
FREE = 0.01  # of a plain step: a draft that takes less costs nothing
MARGIN = 1.05  # of plain decoding's rate, to be expected of a draft that is made
WARM_UP = 3  # plain steps before anything is tried
TRIALS = 2  # drafts at the beginning, whatever they seem to cost
TRIED = 2  # tokens of a draft that is a trial
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


@dataclass(slots=True)
class Speculation:
    """How drafting went, for the report."""

    steps: int = 0  # passes of the model, plain ones included
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0  # what the same tokens would have taken without, estimated

    @property
    def accepted_length(self) -> float:
        """Tokens a pass of the model yields on average."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def speedup(self) -> float:
        """Estimated time without speculation over the time it took."""
        return self.plain_seconds / self.seconds if self.seconds else 1.0

    def line(self) -> str:
        """Return it for people."""
        return (
            f"speculation: {self.drafted} drafted, {self.accepted} accepted, "
            f"{self.accepted_length:.2f} tokens a pass, estimated speedup {self.speedup:.2f}"
        )


class Controller:
    """Chooses the number of drafted tokens of each step.

    Args:
        most: Largest number.
        fixed: Always draft *most*, whatever it costs: for measurements.
        at_once: Drafting several tokens takes as long as drafting one.
    """

    def __init__(self, most: int, *, fixed: bool = False, at_once: bool = False) -> None:
        self.speculation = Speculation()
        self._most = most
        self._fixed = fixed
        self._at_once = at_once
        self._right = Mean(0.7, PATIENCE, samples=4)  # a guess, when those before it are
        self._verify = [Mean(0.0) for _ in range(most + 1)]  # seconds, by drafted tokens
        self._draft = Mean(0.0)  # seconds per drafted token, or per draft
        self._since_plain = 0
        self._trials = 0

    def choose(self) -> int:
        """Return how many tokens to draft now."""
        if self._fixed:
            return self._most
        plain = self._verify[0]
        if self.speculation.steps < WARM_UP or self._since_plain >= REFRESH or not plain.known:
            return 0
        if self._trials < TRIALS:
            return min(self._most, TRIED)
        best = max(range(self._most + 1), key=self._rate)
        return best if self._rate(best) > MARGIN * self._rate(0) else self._trial()

    def observe(
        self,
        proposed: int,
        right: int,
        draft_seconds: float,
        verify_seconds: float,
        *,
        wanted: int | None = None,
    ) -> None:
        """Take in one step: *right* of *proposed* tokens were accepted, *wanted* asked for.

        A draft that gives up has spent the time of one token more, and counts as a wrong guess;
        unless it spent next to nothing, as a lookup does.
        """
        wanted = proposed if wanted is None else wanted
        self._verify[proposed].add(verify_seconds)
        gave_up = proposed < wanted and draft_seconds > FREE * self._verify[0].value
        if proposed or gave_up:
            self._trials += 1
            self._draft.add(draft_seconds / self._shares(proposed + gave_up))
            for i in range(min(right + 1, proposed + gave_up)):
                self._right.add(float(i < right))
        self._since_plain = self._since_plain + 1 if proposed else 0
        s = self.speculation
        s.steps += 1
        s.drafted += proposed
        s.accepted += right
        s.tokens += right + 1
        s.seconds += draft_seconds + verify_seconds
        plain = self._verify[0]
        each = plain.value if plain.known else verify_seconds
        s.plain_seconds += (right + 1) * each if proposed else verify_seconds

    def _trial(self) -> int:
        """Return a number to try, when nothing pays by what is known and the budget allows."""
        s = self.speculation
        lost = max(0.0, s.seconds - s.plain_seconds)
        tried = min(self._most, TRIED)
        cost = self._seconds(tried)  # if every guess is wrong, all but one token's time
        return tried if lost + cost < ALLOWANCE * s.seconds else 0

    def _rate(self, n: int) -> float:
        """Return the tokens per second to expect with *n* drafted."""
        tokens = sum(self._right.value**i for i in range(n + 1))
        return tokens / self._seconds(n)

    def _seconds(self, n: int) -> float:
        """Return the time that a step with *n* drafted takes, from those near it if need be."""
        plain = self._verify[0].value
        known = [i for i in range(self._most + 1) if self._verify[i].known]
        below = max((i for i in known if i <= n), default=0)
        above = min((i for i in known if i >= n), default=None)
        if above is None or above == below:
            verify = self._verify[below].value + (n - below) * PRIOR_ROW * plain
        else:
            low, high = self._verify[below].value, self._verify[above].value
            verify = low + (high - low) * (n - below) / (above - below)
        return verify + self._shares(n) * self._draft.value

    def _shares(self, n: int) -> int:
        """Return how many times `_draft` the drafting of *n* tokens takes."""
        return min(n, 1) if self._at_once else n
