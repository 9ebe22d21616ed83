"""Decide at each step whether to draft, and how many tokens, from measured times.

A pass that verifies n draft tokens yields the accepted tokens and one more.  Its time is the time
to draft n tokens and to verify n + 1 rows.  The controller keeps running means of the tokens and
the time of such passes.  It drafts while such passes yield more tokens than plain steps in the same
time.

The number of draft tokens is decided token by token.  An accepted draft token saves a plain step.
So the drafter continues while the time of a plain step, times the probability that all draft tokens
are accepted, exceeds the cost of the next draft token (`Thresholds`).

The controller has to try drafts to measure their gain, and limits the loss from these trials.  The
loss is the time of all steps minus the time of plain decoding for the same tokens.  It may not
exceed `ALLOWANCE` of the time of the sequence; a gain reduces the loss, at most to minus this
limit.  If the number of tokens is known, the time of the sequence is the time of all its tokens.
In the first trials of a process, at least `USUAL` tokens are assumed, because later sequences
profit from these trials.

A draft model has to evaluate the prompt before it drafts.  This time counts as loss, unless it is a
small part of the expected gain in the rest of the sequence.  The gain can be estimated before the
draft model evaluates a token: the acceptance rate is about the probability that the model gives to
its own tokens.
"""

import math
from dataclasses import dataclass

from npurt.llm.spec.speculation import Speculation

ALLOWANCE = 0.025  # largest loss, as a fraction of the time of a sequence
AGAIN = 0.015  # largest loss while drafts do not pay, as a fraction of the time so far
MEMORY = 0.85  # weight of the past in a running mean of times
PATIENCE = 0.95  # weight of the past in a running mean of tokens per pass, which varies more
BELIEF = 4  # weight of an assumed or estimated value, in samples
PRIOR_RIGHT = 0.7  # assumed acceptance rate of draft tokens
PRIOR_ROW = 0.1  # assumed time of one more row of verification, in plain steps
MARGIN = 1.05  # smallest expected speedup with which drafts are used
TRIALS = 2  # drafts of one token at the beginning, because the first measurement is unreliable
COLD = 2  # assumed slowdown of the first run of a drafter
USUAL = 128  # assumed number of tokens of a completion of unknown length
PART = 1 / 2  # fraction of the expected gain that a drafter's prefill may cost
REFRESH = 48  # steps with drafts after which a plain step is measured again


@dataclass(slots=True)
class Mean:
    """A running mean: of all samples at first, later with exponential forgetting."""

    value: float
    memory: float = MEMORY
    samples: int = 0

    @property
    def known(self) -> bool:
        """Whether there are two samples.  The first sample of a process is too slow to rely on."""
        return self.samples > 1

    def add(self, sample: float) -> None:
        """Add a sample.

        The first sample replaces the assumed value; a smaller second sample replaces the first.
        """
        begins = self.samples == 0 or (self.samples == 1 and sample < self.value)
        weight = 0.0 if begins else min(self.memory, self.samples / (self.samples + 1))
        self.value = weight * self.value + (1 - weight) * sample
        self.samples += 1


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The smallest probabilities with which to continue a draft.

    Each is compared with the probability that all draft tokens so far are accepted.

    Attributes:
        draft: From this probability on, it pays to draft another token and verify it.
        verify: From this probability on, it pays to verify the last draft token.
    """

    draft: float = 0.0
    verify: float = 0.0


class Controller:
    """Decides at each step whether to draft, and how many tokens at most.

    Args:
        maximum: The largest number of draft tokens in a step.
        fixed: Draft *maximum* tokens at each step without regard to cost; for measurements.
        at_once: Whether drafting several tokens takes as long as drafting one.
        share: The assumed time to draft a token, as a fraction of a plain step, until it is
            measured.

    Attributes:
        speculation: The counts of all sequences.
        text: The counts of the present sequence.
    """

    def __init__(
        self, maximum: int, *, fixed: bool = False, at_once: bool = False, share: float = 0.0
    ) -> None:
        self.speculation = Speculation()
        self.text = Speculation()
        self._maximum = maximum
        self._fixed = fixed
        self._at_once = at_once
        self._share = share
        self._right = Mean(
            PRIOR_RIGHT, PATIENCE, BELIEF
        )  # acceptance rate, until draft tokens were verified
        self._verify = [
            Mean(0.0) for _ in range(maximum + 1)
        ]  # seconds of a pass, by number of draft tokens
        self._draft = Mean(0.0)  # seconds per draft token, or per draft with *at_once*
        self._read = Mean(0.0)  # seconds in which the drafter evaluates a token
        self._tokens = Mean(0.0, PATIENCE)  # tokens of a pass with draft tokens
        self._steps = Mean(0.0, PATIENCE)  # time of such a pass, in plain steps
        self._since_plain = 0
        self._trials = 0
        self._expected: int | None = None
        self._lost = 0.0  # seconds more than plain decoding would have taken

    def begin(self, expected: int | None, reading: float = 0.0) -> Speculation:
        """Begin another sequence; return its counts.

        Args:
            expected: The largest number of tokens to generate; None if unknown.
            reading: Seconds of the model's prefill for each token of the prompt.
        """
        self.text = Speculation()
        self._expected = expected
        self._lost = 0.0
        if not self._read.samples:
            self._read.value = self._share * reading
        return self.text

    @property
    def curious(self) -> bool:
        """Whether the caller should call `believe`: in every second step until the first draft."""
        return self._trials == 0 and self.text.passes % 2 == 0 and not self._fixed

    def believe(self, certainty: float) -> None:
        """Add *certainty*, the probability of the most probable token, to the acceptance rate."""
        self._right.add(certainty)

    @property
    def thresholds(self) -> Thresholds:
        """The smallest probabilities with which a draft token pays."""
        if self._fixed:
            return Thresholds()
        plain = self._verify[0].value
        row = max(0.0, self._verifying(self._maximum) - plain) / self._maximum
        another = self._drafting(2) - self._drafting(1)
        return Thresholds((another + row) / (PRIOR_RIGHT * plain), row / plain)

    def choose(self, behind: int = 0) -> int:
        """Return the largest number of tokens to draft.

        *behind* is the number of tokens that the drafter has to evaluate first.
        """
        if self._fixed:
            return self._maximum
        plain = self._verify[0]
        if not plain.known or self._since_plain >= REFRESH:
            return 0
        lost = self._lost + self._owed(behind)
        left = self._allowance() - lost
        if self._trials >= TRIALS:
            if self._pays():
                # Half of the remaining allowance, so that one rejected draft does not end drafting.
                return max(self._affordable(left / 2), min(1, self._affordable(left)))
            left = min(left, AGAIN * self.text.seconds - lost)
        return min(1, self._affordable(left))

    def reading(self, behind: int) -> int:
        """Return how many of the *behind* tokens the drafter may evaluate in this step."""
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
        """Add the result of a step: the model accepted *right* of *proposed* draft tokens.

        Args:
            proposed: The number of verified draft tokens.
            right: The number of accepted draft tokens.
            draft_seconds: The time of drafting.
            verify_seconds: The time of the model's pass.
            drawn: The number of draft tokens that were computed; by default *proposed*.
            behind: The number of tokens that the drafter evaluated first.
            read_seconds: The time of that evaluation.
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
        """Add the result of a draft to the running means."""
        if not (
            self._tokens.samples and self._pays()
        ):  # so that a few good passes suffice to resume drafting
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
        """Return the expected tokens of a pass with a draft, and its time in plain steps.

        Before the first such pass, both are estimated for the draft length with the best ratio.
        """
        if self._tokens.samples:
            return self._tokens.value, self._steps.value
        each = (
            (sum(self._right.value**i for i in range(n + 1)), self._time(n, n))
            for n in range(1, self._maximum + 1)
        )
        return max(each, key=lambda pair: pair[0] / pair[1])

    def _to_come(self) -> int:
        """Return the assumed number of tokens still to be generated.

        During the first trials of a process, a completion of at least `USUAL` tokens is assumed.
        """
        done = self.text.tokens
        if self._expected is None:
            return max(USUAL - done, done)
        return (max(self._expected, USUAL) if self._trials < TRIALS else self._expected) - done

    def _owed(self, behind: int) -> float:
        """Return the seconds of evaluating *behind* tokens; 0 if the expected gain is larger."""
        plain = self._verify[0]
        if not behind or not plain.known:
            return 0.0
        tokens, steps = self._expect()
        win = max(0.0, 1 - steps / tokens) * self._to_come() * plain.value
        reading = behind * self._read.value
        return reading if reading > PART * win else 0.0

    def _allowance(self) -> float:
        """Return the largest loss of the present sequence, in seconds."""
        return ALLOWANCE * (self.text.seconds + self._to_come() * self._verify[0].value)

    def _affordable(self, seconds: float) -> int:
        """Return the largest number of draft tokens that lose at most *seconds* if rejected."""
        counts = range(1, self._maximum + 1)
        return max((n for n in counts if self._cost(n) <= seconds), default=0)

    def _cost(self, n: int) -> float:
        """Return the seconds that *n* draft tokens lose if all are rejected."""
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
        known = [i for i in range(self._maximum + 1) if self._verify[i].known]
        below = max((i for i in known if i <= n), default=0)
        above = min((i for i in known if i >= n), default=None)
        if above is None or above == below:
            return self._verify[below].value + (n - below) * PRIOR_ROW * plain
        low, high = self._verify[below].value, self._verify[above].value
        return low + (high - low) * (n - below) / (above - below)

    def _draws(self, n: int) -> int:
        """Return the number by which the time in `_draft` is multiplied for *n* draft tokens."""
        return min(n, 1) if self._at_once else n
