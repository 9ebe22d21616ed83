"""Decide at each step whether to draft, and how many tokens, from measured times.

A pass that verifies n draft tokens yields one token more than were right.  It takes the time to
draft n tokens and to verify n + 1 rows.  The controller keeps running means of the tokens and the
time of such passes.  It drafts while they yield more tokens than plain steps in the same time.

The number of draft tokens is decided token by token.  A right draft token saves a plain step.  So
the drafter goes on while a plain step's time, times the probability that all draft tokens are
right, is more than the next token costs (`Thresholds`).

The controller has to try a draft to know its worth, and its losses are limited.  The loss is the
time that drafting took beyond plain decoding of the same tokens.  It stays below `ALLOWANCE` of the
text's time; gains reduce it, down to minus that limit.  The text's time is that of all its tokens
when their number is known.  For the first trials of a process it is that of at least `USUAL`
tokens, because later texts profit from these trials too.

A draft model has to read the text before it drafts.  The controller pays for that from the same
allowance, or from the expected gain in the rest of the text.  It can estimate that gain before the
draft model reads: draft tokens are right about as often as the model is sure of its own tokens.
"""

import math
from dataclasses import dataclass

from npurt.llm.spec.speculation import Speculation

ALLOWANCE = 0.025  # the most loss, as a share of a text's time
AGAIN = 0.015  # the most loss while drafts seem not to pay, as a share of the time so far
MEMORY = 0.85  # weight of the past in a running mean of times
PATIENCE = 0.95  # the same for the tokens of passes, which vary more
BELIEF = 4  # weight, in samples, of an assumed value, and of an estimate that replaces a bad record
PRIOR_RIGHT = 0.7  # assumed share of right draft tokens
PRIOR_ROW = 0.1  # assumed time of another row of verification, in plain steps
MARGIN = 1.05  # the least expected speedup of a draft
TRIALS = 2  # drafts of one token at the beginning, because the first measurement is unreliable
COLD = 2  # assumed slowdown of a first run
USUAL = 128  # assumed tokens of a text of unknown length
PART = 1 / 2  # share of the expected gain that reading the text may cost
REFRESH = 48  # steps with drafts after which a plain step is measured again


@dataclass(slots=True)
class Mean:
    """A running mean: of all samples at first, later with exponential forgetting."""

    value: float
    memory: float = MEMORY
    samples: int = 0

    @property
    def known(self) -> bool:
        """Whether there are two samples; the first one of a process is slow."""
        return self.samples > 1

    def add(self, sample: float) -> None:
        """Add a sample; the first replaces the prior, and a smaller second replaces the first."""
        begins = self.samples == 0 or (self.samples == 1 and sample < self.value)
        weight = 0.0 if begins else min(self.memory, self.samples / (self.samples + 1))
        self.value = weight * self.value + (1 - weight) * sample
        self.samples += 1


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The least probabilities that all draft tokens so far are right."""

    draft: float = 0.0  # for drafting another token and verifying it
    verify: float = 0.0  # for verifying the last token, which was drafted already


class Controller:
    """Decides at each step whether to draft, and how far that may go.

    Args:
        most: The most tokens to draft at once.
        fixed: Draft *most* tokens at each step, whatever they cost; for measurements.
        at_once: Drafting several tokens takes as long as drafting one.
        share: Assumed time of a draft token, as a share of a plain step's, until it is measured.

    Attributes:
        speculation: The counts of all texts.
        text: The counts of the present text.
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
        self._right = Mean(
            PRIOR_RIGHT, PATIENCE, BELIEF
        )  # of draft tokens, before any was verified
        self._verify = [Mean(0.0) for _ in range(most + 1)]  # seconds, by drafted tokens
        self._draft = Mean(0.0)  # seconds per draft token, or per draft
        self._read = Mean(0.0)  # seconds per token that a drafter reads
        self._tokens = Mean(0.0, PATIENCE)  # of a pass with draft tokens
        self._steps = Mean(0.0, PATIENCE)  # plain ones that such a pass takes as long as
        self._since_plain = 0
        self._trials = 0
        self._expected: int | None = None
        self._lost = 0.0  # seconds, over plain decoding, that other steps have not won back

    def begin(self, expected: int | None, reading: float = 0.0) -> Speculation:
        """Begin another text; return its counts.

        Args:
            expected: The most tokens that the text will have; None: unknown.
            reading: Seconds that the model took for each token of the prompt.
        """
        self.text = Speculation()
        self._expected = expected
        self._lost = 0.0
        if not self._read.samples:
            self._read.value = self._share * reading
        return self.text

    @property
    def curious(self) -> bool:
        """Whether the caller should call `believe`: at every second step, until the first draft."""
        return self._trials == 0 and self.text.passes % 2 == 0 and not self._fixed

    def believe(self, certainty: float) -> None:
        """Count *certainty*, the probability of the model's own token, as that of a draft token."""
        self._right.add(certainty)

    @property
    def thresholds(self) -> Thresholds:
        """The probabilities from which on a draft token pays."""
        if self._fixed:
            return Thresholds()
        plain = self._verify[0].value
        row = max(0.0, self._verifying(self._most) - plain) / self._most
        another = self._drafting(2) - self._drafting(1)
        return Thresholds((another + row) / (PRIOR_RIGHT * plain), row / plain)

    def choose(self, behind: int = 0) -> int:
        """Return the most tokens to draft, by a drafter that has to read *behind* tokens first."""
        if self._fixed:
            return self._most
        plain = self._verify[0]
        if not plain.known or self._since_plain >= REFRESH:
            return 0
        lost = self._lost + self._owed(behind)
        left = self._allowance() - lost
        if self._trials >= TRIALS:
            if self._pays():
                # Half of the rest, so that one wrong draft does not end drafting.
                return max(self._affordable(left / 2), min(1, self._affordable(left)))
            left = min(left, AGAIN * self.text.seconds - lost)
        return min(1, self._affordable(left))

    def reading(self, behind: int) -> int:
        """Return how many of the *behind* tokens the drafter may read now."""
        return behind

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
        """Add a step: *right* of *proposed* draft tokens were accepted.

        Args:
            proposed: The number of draft tokens that were verified.
            right: The number that were accepted.
            draft_seconds: The time of drafting.
            verify_seconds: The time of the model's pass.
            drawn: The number of draft tokens that were computed; by default *proposed*.
            behind: The number of tokens that the drafter read before.
            read_seconds: The time of reading them.
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
        """Add the result of a draft, with the mean time of such a draft."""
        if not (self._tokens.samples and self._pays()):  # a few good passes must change that
            self._tokens.value, self._steps.value = self._expect()
            self._tokens.samples = self._steps.samples = BELIEF
        self._trials += 1
        self._draft.add(seconds / self._draws(drawn))
        self._tokens.add(right + 1)
        self._steps.add(self._time(proposed, drawn))

    def _pays(self) -> bool:
        """Return whether passes with drafts yield more tokens than plain steps in the same time."""
        tokens, steps = self._expect()
        return tokens > MARGIN * steps

    def _expect(self) -> tuple[float, float]:
        """Return the tokens of a pass with a draft, and its time in plain steps.

        Before the first such pass, they are those of the draft length that is expected to pay most.
        """
        if self._tokens.samples:
            return self._tokens.value, self._steps.value
        each = (
            (sum(self._right.value**i for i in range(n + 1)), self._time(n, n))
            for n in range(1, self._most + 1)
        )
        return max(each, key=lambda pair: pair[0] / pair[1])

    def _to_come(self) -> int:
        """Return how many tokens the text is assumed to have still.

        During the first trials of a process they are at least those of a text of `USUAL` tokens.
        """
        done = self.text.tokens
        if self._expected is None:
            return max(USUAL - done, done)
        return (max(self._expected, USUAL) if self._trials < TRIALS else self._expected) - done

    def _owed(self, behind: int) -> float:
        """Return the seconds of reading *behind* tokens; 0 if the expected gain pays for them."""
        plain = self._verify[0]
        if not behind or not plain.known:
            return 0.0
        tokens, steps = self._expect()
        win = max(0.0, 1 - steps / tokens) * self._to_come() * plain.value
        reading = behind * self._read.value
        return reading if reading > PART * win else 0.0

    def _allowance(self) -> float:
        """Return the most seconds that the text may lose."""
        return ALLOWANCE * (self.text.seconds + self._to_come() * self._verify[0].value)

    def _affordable(self, seconds: float) -> int:
        """Return the most draft tokens that lose no more than *seconds* if none is right."""
        counts = range(1, self._most + 1)
        return max((n for n in counts if self._cost(n) <= seconds), default=0)

    def _cost(self, n: int) -> float:
        """Return the seconds that *n* draft tokens lose if none is right."""
        cold = 1 if self._trials else COLD
        return cold * (self._drafting(n) + self._verifying(n)) - self._verify[0].value

    def _time(self, n: int, drawn: int) -> float:
        """Return the time, in plain steps, to draft *drawn* tokens and verify *n*; 1 if unknown."""
        plain = self._verify[0].value
        return (self._drafting(drawn) + self._verifying(n)) / plain if plain else 1.0

    def _drafting(self, n: int) -> float:
        """Return the seconds that drafting *n* tokens takes."""
        each = self._draft.value if self._draft.samples else self._share * self._verify[0].value
        return self._draws(n) * each

    def _verifying(self, n: int) -> float:
        """Return the seconds of a pass that verifies *n* tokens, interpolated if not measured."""
        plain = self._verify[0].value
        known = [i for i in range(self._most + 1) if self._verify[i].known]
        below = max((i for i in known if i <= n), default=0)
        above = min((i for i in known if i >= n), default=None)
        if above is None or above == below:
            return self._verify[below].value + (n - below) * PRIOR_ROW * plain
        low, high = self._verify[below].value, self._verify[above].value
        return low + (high - low) * (n - below) / (above - below)

    def _draws(self, n: int) -> int:
        """Return how often the time `_draft` is needed for *n* tokens."""
        return min(n, 1) if self._at_once else n
