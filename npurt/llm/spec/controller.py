"""Whether to draft: as long as it pays, measured while it runs.

A pass over n guesses yields one token more than were right, and takes the time to draw the guesses
and to check n + 1 rows.  The controller keeps running means of what passes with guesses yield and
take, and drafts while they yield more tokens than plain steps would have in their time.

How many to guess is decided guess by guess, by how sure the drafter is: a right guess saves a plain
step, so one is drawn and checked as long as that, times the chance that it is right, is more than
it costs (`Worth`).

The controller cannot know what it has not tried, so it tries, and its losses are limited: what
drafting has cost over plain decoding of the same tokens, and was not won back, stays below
`ALLOWANCE` of the text's time; gains count against that up to the same sum.  The time is that of
the whole text, when it is known how long that will be; but of `USUAL` tokens at least for the first
trials in a process, whose lesson is not for one text alone.

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
PATIENCE = 0.95  # in that of what comes of passes, which varies from one to the next
BELIEF = 4  # passes that an expectation counts for, or a record that does not pay
PRIOR_RIGHT = 0.7  # of guesses, where nothing is known of them
PRIOR_ROW = 0.1  # of a plain step: what another row of verification costs, before it is measured
MARGIN = 1.05  # of plain decoding's rate, to be expected of a draft that is made
TRIALS = 2  # drafts of one token at the beginning: the first measurement is not relied on
COLD = 2  # times as long takes what was never run
USUAL = 128  # tokens of a text of which nobody knows how long it will be
PART = 1 / 2  # of what can be won, for reading the text
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


@dataclass(frozen=True, slots=True)
class Worth:
    """How likely all guesses so far must be right, for the next step to be worth its time."""

    draw: float = 0.0  # to draw another, and to check it
    check: float = 0.0  # to check the last, which was drawn


class Controller:
    """Decides at each step whether to draft, and how far that may go.

    Args:
        most: Tokens to guess at once, at most.
        fixed: Always guess *most*, whatever it costs: for measurements.
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
        self._right = Mean(PRIOR_RIGHT, PATIENCE, BELIEF)  # a guess, before any was judged
        self._verify = [Mean(0.0) for _ in range(most + 1)]  # seconds, by drafted tokens
        self._draft = Mean(0.0)  # seconds per token drawn, or per draft
        self._read = Mean(0.0)  # seconds per token that a drafter reads
        self._tokens = Mean(0.0, PATIENCE)  # of a pass with guesses
        self._steps = Mean(0.0, PATIENCE)  # plain ones that such a pass takes as long as
        self._since_plain = 0
        self._trials = 0
        self._expected: int | None = None
        self._lost = 0.0  # seconds, over plain decoding, that other steps have not won back

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

    @property
    def worth(self) -> Worth:
        """From which certainty on a guess pays."""
        if self._fixed:
            return Worth()
        plain = self._verify[0].value
        row = max(0.0, self._verifying(self._most) - plain) / self._most
        another = self._drafting(2) - self._drafting(1)
        return Worth((another + row) / (PRIOR_RIGHT * plain), row / plain)

    def choose(self, behind: int = 0) -> int:
        """Return how many tokens to draft at most, by a drafter that has *behind* to read."""
        if self._fixed:
            return self._most
        plain = self._verify[0]
        if not plain.known or self._since_plain >= REFRESH:
            return 0
        lost = self._lost + self._owed(behind)
        left = self._allowance() - lost
        if self._trials >= TRIALS:
            if self._pays():
                # Half of it, so that one wrong draft is not the last.
                return max(self._affordable(left / 2), min(1, self._affordable(left)))
            left = min(left, AGAIN * self.text.seconds - lost)
        return min(1, self._affordable(left))

    def observe(
        self,
        proposed: int,
        right: int,
        draft_seconds: float,
        verify_seconds: float,
        *,
        drawn: int | None = None,
        behind: int = 0,
        read_seconds: float = 0.0,
    ) -> None:
        """Take in one step: *right* of *proposed* tokens were accepted.

        Args:
            proposed: Guesses that were checked.
            right: How many of them were right.
            draft_seconds: What drawing took.
            verify_seconds: What the pass of the model took.
            drawn: Guesses that were made; by default those that were checked.
            behind: Tokens that the drafter read before.
            read_seconds: What that took.
        """
        drawn = proposed if drawn is None else drawn
        owed = read_seconds if self._owed(behind) else 0.0
        plain = self._verify[0]
        self._verify[proposed].add(verify_seconds)
        if behind:
            self._read.add(read_seconds / behind)
        if drawn:
            self._judge(proposed, right, drawn, draft_seconds)
        self._since_plain = self._since_plain + 1 if proposed else 0
        each = plain.value if plain.known else math.nan
        without = (right + 1) * each if proposed else verify_seconds
        seconds = draft_seconds + verify_seconds
        if not math.isnan(without):
            lost = self._lost + owed + seconds - without
            self._lost = max(lost, -self._allowance())
        for account in (self.speculation, self.text):
            account.add(proposed, right, read_seconds + seconds, without)

    def _judge(self, proposed: int, right: int, drawn: int, seconds: float) -> None:
        """Take in what came of a draft; its time as it is on average, not as it was this once."""
        if not (self._tokens.samples and self._pays()):  # a few good passes must change that
            self._tokens.value, self._steps.value = self._expect()
            self._tokens.samples = self._steps.samples = BELIEF
        self._trials += 1
        self._draft.add(seconds / self._draws(drawn))
        self._tokens.add(right + 1)
        self._steps.add(self._time(proposed, drawn))

    def _pays(self) -> bool:
        """Return whether passes with guesses yield more than plain ones in their time."""
        tokens, steps = self._expect()
        return tokens > MARGIN * steps

    def _expect(self) -> tuple[float, float]:
        """Return what a pass with guesses yields, in tokens, and takes, in plain steps.

        Before there was one: with the number of guesses that pays best.
        """
        if self._tokens.samples:
            return self._tokens.value, self._steps.value
        each = (
            (sum(self._right.value**i for i in range(n + 1)), self._time(n, n))
            for n in range(1, self._most + 1)
        )
        return max(each, key=lambda pair: pair[0] / pair[1])

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
        plain = self._verify[0]
        if not behind or not plain.known:
            return 0.0
        tokens, steps = self._expect()
        win = max(0.0, 1 - steps / tokens) * self._to_come() * plain.value
        reading = behind * self._read.value
        return reading if reading > PART * win else 0.0

    def _allowance(self) -> float:
        """Return the seconds that the text may lose."""
        return ALLOWANCE * (self.text.seconds + self._to_come() * self._verify[0].value)

    def _affordable(self, seconds: float) -> int:
        """Return how many tokens may be drafted for no more than that, if none is right."""
        counts = range(1, self._most + 1)
        return max((n for n in counts if self._cost(n) <= seconds), default=0)

    def _cost(self, n: int) -> float:
        """Return the seconds that are lost if *n* are drafted and none is right."""
        cold = 1 if self._trials else COLD
        return cold * (self._drafting(n) + self._verifying(n)) - self._verify[0].value

    def _time(self, n: int, drawn: int) -> float:
        """Return the plain steps that checking *n* of *drawn* guesses takes; 1 before any step."""
        plain = self._verify[0].value
        return (self._drafting(drawn) + self._verifying(n)) / plain if plain else 1.0

    def _drafting(self, n: int) -> float:
        """Return the seconds that *n* tokens take to draft."""
        each = self._draft.value if self._draft.samples else self._share * self._verify[0].value
        return self._draws(n) * each

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

    def _draws(self, n: int) -> int:
        """Return how many times `_draft` the drafting of *n* tokens takes."""
        return min(n, 1) if self._at_once else n
