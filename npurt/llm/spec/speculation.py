"""Counts of speculative decoding, for one sequence or for all sequences of a model."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Speculation:
    """The numbers of drafted and accepted tokens, and the time of all passes."""

    passes: int = 0  # runs of the model, including plain steps
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0  # estimated time without drafts; NaN if unknown

    @property
    def mean_accepted(self) -> float | None:
        """Mean number of tokens that a pass yields; None before the first pass."""
        return self.tokens / self.passes if self.passes else None

    @property
    def speedup(self) -> float | None:
        """Estimated time without drafts, divided by the measured time; None if unknown."""
        known = self.seconds > 0 and not math.isnan(self.plain_seconds)
        return self.plain_seconds / self.seconds if known else None

    def add(self, drafted: int, accepted: int, seconds: float, plain: float) -> None:
        """Add a pass that took *seconds*; *plain* is the estimated time without drafts."""
        self.passes += 1
        self.drafted += drafted
        self.accepted += accepted
        self.tokens += accepted + 1
        self.seconds += seconds
        self.plain_seconds += plain

    def figures(self) -> dict[str, float | None]:
        """Return the counts as a dict."""
        return {
            "drafted": self.drafted,
            "accepted": self.accepted,
            "passes": self.passes,
            "mean_accepted": self.mean_accepted,
            "speedup": self.speedup,
        }

    def line(self) -> str:
        """Return the counts as one line of text."""
        length = "" if self.mean_accepted is None else f", {self.mean_accepted:.2f} tokens a pass"
        gain = "" if self.speedup is None else f", estimated speedup {self.speedup:.2f}"
        return f"speculation: {self.drafted} drafted, {self.accepted} accepted{length}{gain}"
